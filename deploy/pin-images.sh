#!/bin/sh
# Asks the registries for the present digest of each image in images.env, and writes the digest into the line
# after the image. With --check, asks no registry, and fails if a digest is missing.
set -eu
file=$(dirname "$0")/images.env
digest='^sha256:[0-9a-f]\{64\}$'

if [ "${1:-}" = --check ]; then
    if grep '_DIGEST=' "$file" | grep --invert-match '=sha256:[0-9a-f]\{64\}$'; then
        echo "These images have no digest: run sh deploy/pin-images.sh" >&2
        exit 1
    fi
    exit 0
fi

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
while IFS= read -r line; do
    case $line in
        *_IMAGE=*)
            image=${line#*=}
            ;;
        *_DIGEST=*)
            # If an image has a manifest list for several platforms, this is the digest of the list.
            found=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}')
            if ! printf '%s\n' "$found" | grep --quiet "$digest"; then
                echo "The registry named no digest of $image: $found" >&2
                exit 1
            fi
            line=${line%%=*}=$found
            ;;
    esac
    printf '%s\n' "$line"
done < "$file" > "$fresh"
cat "$fresh" > "$file"

#!/bin/sh
# Writes the digest that each tag in images.env has now behind the tag. With --check it asks nobody and
# fails if an image has no digest.
set -eu
file=$(dirname "$0")/images.env
digest='@sha256:[0-9a-f]\{64\}$'

if [ "${1:-}" = --check ]; then
    if grep '^[A-Z]' "$file" | grep --invert-match "$digest"; then
        echo "These images have no digest: run sh deploy/pin-images.sh" >&2
        exit 1
    fi
    exit 0
fi

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
while IFS= read -r line; do
    case $line in
        [A-Z]*=*)
            tagged=${line%@sha256:*}
            # The digest of the list for all platforms, where an image has one.
            found=$(docker buildx imagetools inspect "${tagged#*=}" --format '{{.Manifest.Digest}}')
            line=$tagged@$found
            if ! printf '%s\n' "$line" | grep --quiet "$digest"; then
                echo "The registry named no digest of ${tagged#*=}: $found" >&2
                exit 1
            fi
            ;;
    esac
    printf '%s\n' "$line"
done < "$file" > "$fresh"
cat "$fresh" > "$file"

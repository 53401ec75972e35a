"""AWS keys with botocore. Imported only for the credential `sigv4`."""

from bisect import bisect_left

from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from tollkeeper.providers.credentials import is_header_text
from tollkeeper.providers.identities import AwsIdentity
from tollkeeper.providers.identity.failure import IdentityFailure, as_identity_failure, silence
from tollkeeper.providers.identity.renewal import Expiring
from tollkeeper.providers.identity.sigv4 import SigningKeys

silence("botocore", "urllib3")
# `renewal` retries.
_CLIENT_CONFIG = Config(connect_timeout=5, read_timeout=5, retries={"max_attempts": 0})
# Keys that don't expire are read again, because their file may have changed.
_RECHECK_S = 60.0
# The longest that `obtain` can find; it stands for longer ones too.
_LIFETIME_S_MAX = 7 * 86400


def obtain(identity: AwsIdentity) -> Expiring[SigningKeys]:
    """Blocks. Searches again each time, so operators can replace a key file at run time. Raises
    IdentityFailure."""
    try:
        # With a profile, botocore ignores keys in environment variables, so the settings
        # win.
        session = Session(profile=identity.profile or ("default" if identity.file else None))
        session.set_default_client_config(_CLIENT_CONFIG)
        session.set_config_variable("region", identity.region)
        if identity.file:
            session.set_config_variable("credentials_file", identity.file)
        credentials = session.get_credentials()
        frozen = None if credentials is None else credentials.get_frozen_credentials()
    except ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        raise IdentityFailure(f"AWS refused: {code[:64]}") from None
    except (BotoCoreError, ValueError) as exc:
        raise as_identity_failure(exc, local_errors=(BotoCoreError,)) from None
    if frozen is None:
        raise IdentityFailure("the AWS library found no keys")
    keys = SigningKeys(frozen.access_key or "", frozen.secret_key or "", frozen.token or "")
    sent_in_headers = (keys.access_key, keys.session_token or "-")
    if not keys.secret_key or not all(map(is_header_text, sent_in_headers)):
        raise IdentityFailure(
            "the access key or session token has invalid characters, or the secret is missing"
        )
    if not isinstance(credentials, RefreshableCredentials):
        return Expiring(keys, None, recheck_s=_RECHECK_S)
    # botocore only tells whether keys expire within n seconds, hence a binary search.
    ends_within = credentials.refresh_needed
    return Expiring(keys, bisect_left(range(_LIFETIME_S_MAX), True, key=ends_within))

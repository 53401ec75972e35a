"""Two tenants, one quiet and one hostile: what the one does is not the other's delay, refusal or bill."""

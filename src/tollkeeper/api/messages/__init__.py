"""The Messages face: token counting only."""

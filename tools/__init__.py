"""What `make check` needs beside its libraries."""

"""Sends requests to model servers and reads the bytes of their answers: HTTP/1.1 connections,
connection pools and event streams."""

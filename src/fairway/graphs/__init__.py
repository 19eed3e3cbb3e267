"""Typed computation graphs that fire as data arrives."""

"""Tests of stages/analysis."""

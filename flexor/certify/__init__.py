"""Gradients with a certificate."""

from flexor.certify.certificate import Certificate, Row, certify

__all__ = ["Certificate", "Row", "certify"]

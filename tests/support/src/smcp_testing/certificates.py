"""Certificates of an authority that lives as long as a test."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files (PEM) that a server needs."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; `ca` is the file that their holders are checked with."""

    def __init__(self, directory: Path, name: str = "a test's authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca = directory / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _called(name)
        self._public = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        signed = (
            _valid(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._public, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def certificate(self, *hosts: str) -> Certificate:
        """For a server that is reached under these names and addresses, and is a client of others, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general(host) for host in hosts])
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        signed = (
            _valid(_called(hosts[0]), self._name, key)
            .add_extension(names, critical=False)
            .add_extension(both, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        made = Certificate(self.directory / f"{hosts[0]}.crt", self.directory / f"{hosts[0]}.key")
        made.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return made


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _valid(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )

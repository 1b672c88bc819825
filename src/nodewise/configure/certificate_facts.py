"""What a certificate and a key say of themselves."""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it is a CA's. What cannot be read is taken for one: no answer must not mean that all is well."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return certificate.issuer == certificate.subject
    except ValueError:
        return True


def public_der(key: PublicKeyTypes) -> bytes:
    """A public key as DER: equal for a certificate and the key that belongs to it."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

import pytest

from clearhead import EncoderDecoder
from tests.decode.models import trained_translator


@pytest.fixture(scope="session")
def trained() -> EncoderDecoder:
    return trained_translator()

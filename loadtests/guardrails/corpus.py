"""A corpus of texts with personal data in known places, near misses, and clean technical text.

It has the ways of writing of many countries, and computes numbers and check digits by itself, from the definitions and not with the
recognisers' code. The same seed gives the same corpus.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

DIGITS = string.digits


@dataclass(frozen=True)
class Sample:
    """A text; the entity in it and its place, or no entity in a near miss."""

    text: str
    entity: str | None
    start: int = 0
    end: int = 0


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def digits(self, count: int) -> str:
        return "".join(self.random.choices(DIGITS, k=count))

    def pick(self, *of: str) -> str:
        return self.random.choice(of)

    def grouped(self, text: str, *sizes: int) -> str:
        """With one separator between groups, or none."""
        separator = self.pick(" ", "-", "", " ")
        pieces, place = [], 0
        for size in sizes or (4,) * (len(text) // 4 + 1):
            pieces.append(text[place : place + size])
            place += size
        return separator.join(piece for piece in (*pieces, text[place:]) if piece)

    # --- entities

    def email(self) -> str:
        name = self.pick(
            "anna.kowalska", "j_smith", "o'brien", "li-wei", "m.garcia+news", "info", "x1", "bjørn", "Jean-Luc.P", "contact%home"
        )
        host = self.pick(
            "example.com", "mail.example.co.uk", "firma.de", "sub.domain.org", "uni-test.edu", "a1.io", "müller.example", "xn--p1ai.museum"
        )
        return f"{name}{self.random.choice(['', self.digits(2)])}@{host}"

    def luhn(self, body: str) -> str:
        total = sum(sum(divmod(int(digit) * (2 - place % 2), 10)) for place, digit in enumerate(reversed(body)))
        return body + str(-total % 10)

    def card(self) -> str:
        prefix, length = self.random.choice(
            [("4", 16), ("51", 16), ("55", 16), ("2221", 16), ("34", 15), ("37", 15), ("6011", 16), ("3530", 16), ("62", 16), ("305", 14)]
        )
        number = self.luhn(prefix + self.digits(length - len(prefix) - 1))
        return self.grouped(number, 4, 6, 5) if length == 15 else self.grouped(number)

    def iban(self) -> str:
        country, length = self.random.choice(
            [("DE", 22), ("GB", 22), ("FR", 27), ("ES", 24), ("NL", 18), ("CH", 21), ("NO", 15), ("PL", 28), ("MT", 31), ("SA", 24)]
        )
        body = (self.pick("ABNA", "NWBK", "INGB") if country in ("GB", "NL") else "") + self.digits(40)
        body = body[: length - 4]
        check = 98 - int("".join(str(int(one, 36)) for one in body + country + "00")) % 97
        code = f"{country}{check:02}{body}"
        return self.pick(" ".join(code[at : at + 4] for at in range(0, len(code), 4)), code, code.lower())

    def ssn(self) -> str:
        area = self.random.choice([*range(1, 666), *range(667, 900)])
        return f"{area:03}-{self.random.randint(1, 99):02}-{self.random.randint(1, 9999):04}"

    def phone(self) -> str:
        two = self.digits
        return self.random.choice(
            [
                f"+1 {self.random.randint(201, 989)} {self.random.randint(200, 999)} {two(4)}",
                f"({self.random.randint(212, 989)}) {self.random.randint(220, 999)}-{two(4)}",
                f"{self.random.randint(212, 989)}-{self.random.randint(220, 999)}-{two(4)}",
                f"+44 20 {two(4)} {two(4)}",
                f"07{two(3)} {two(6)}",
                f"+49 {self.random.randint(151, 179)} {two(7)}",
                f"0{self.random.randint(30, 89)}/{two(7)}",
                f"+33 6 {two(2)} {two(2)} {two(2)} {two(2)}",
                f"06 {two(2)} {two(2)} {two(2)} {two(2)}",
                f"+34 6{two(2)} {two(3)} {two(3)}",
                f"+91 9{two(4)} {two(5)}",
                f"(11) 9{two(4)}-{two(4)}",
                f"090-{two(4)}-{two(4)}",
                f"+86 138 {two(4)} {two(4)}",
                f"0041 44 {two(3)} {two(2)} {two(2)}",
                f"+48{self.random.randint(500, 899)}{two(6)}",
            ]
        )

    def national_id(self) -> str:
        return self.random.choice(
            [
                self.spanish,
                self.polish,
                self.brazilian,
                self.chinese,
                self.swedish,
                self.finnish,
                self.belgian,
                self.french,
                self.dutch,
                self.portuguese,
                self.indian,
            ]
        )()

    def date(self) -> tuple[int, int, int]:
        return self.random.randint(1930, 2010), self.random.randint(1, 12), self.random.randint(1, 28)

    def spanish(self) -> str:
        number = self.digits(8)
        return number + "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23]

    def polish(self) -> str:
        year, month, day = self.date()
        body = f"{year % 100:02}{month + (20 if year >= 2000 else 0):02}{day:02}{self.digits(4)}"
        return body + str(-sum(int(one) * weight for one, weight in zip(body, (1, 3, 7, 9) * 3, strict=False)) % 10)

    def brazilian(self) -> str:
        body = self.digits(9)
        for _ in range(2):
            rest = sum(int(one) * weight for one, weight in zip(body, range(len(body) + 1, 1, -1), strict=True)) % 11
            body += str(0 if rest < 2 else 11 - rest)
        return f"{body[:3]}.{body[3:6]}.{body[6:9]}-{body[9:]}"

    def chinese(self) -> str:
        year, month, day = self.date()
        body = f"{self.pick('110105', '310101', '440106')}{year}{month:02}{day:02}{self.digits(3)}"
        total = sum(int(one) * (2 ** (17 - place) % 11) for place, one in enumerate(body))
        return body + "0123456789X"[(12 - total) % 11]

    def swedish(self) -> str:
        year, month, day = self.date()
        short = self.luhn(f"{year % 100:02}{month:02}{day:02}{self.digits(3)}")
        return self.pick(f"{short[:6]}-{short[6:]}", f"{year // 100}{short[:6]}-{short[6:]}")

    def finnish(self) -> str:
        year, month, day = self.date()
        number, birth = self.digits(3), f"{day:02}{month:02}{year % 100:02}"
        return f"{birth}{'A' if year >= 2000 else '-'}{number}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[int(birth + number) % 31]}"

    def belgian(self) -> str:
        year, month, day = self.date()
        body = f"{year % 100:02}{month:02}{day:02}{self.random.randint(1, 997):03}"
        check = 97 - int(("2" if year >= 2000 else "") + body) % 97
        return f"{body[:2]}.{body[2:4]}.{body[4:6]}-{body[6:]}.{check:02}"

    def french(self) -> str:
        year, month, _ = self.date()
        body = f"{self.pick('1', '2')}{year % 100:02}{month:02}{self.random.randint(1, 95):02}{self.digits(6)}"
        whole = f"{body}{97 - int(body) % 97:02}"
        return self.pick(whole, f"{whole[0]} {whole[1:3]} {whole[3:5]} {whole[5:7]} {whole[7:10]} {whole[10:13]} {whole[13:]}")

    def dutch(self) -> str:
        while True:
            body = self.digits(8)
            rest = sum(int(one) * weight for one, weight in zip(body, range(9, 1, -1), strict=True)) % 11
            if rest < 10:
                return f"BSN {body}{rest}"

    def portuguese(self) -> str:
        body = self.pick("1", "2", "5") + self.digits(7)
        rest = sum(int(one) * weight for one, weight in zip(body, range(9, 1, -1), strict=True)) % 11
        return f"NIF {body}{0 if rest < 2 else 11 - rest}"

    def indian(self) -> str:
        body = self.pick(*"23456789") + self.digits(10)
        number = next(body + digit for digit in DIGITS if _verhoeff(body + digit) == 0)
        return f"{number[:4]} {number[4:8]} {number[8:]}"

    def ip(self) -> str:
        if self.random.random() < 0.6:
            return ".".join(str(self.random.randint(1, 223)) for _ in range(4)).replace("127.", "128.")
        groups = [f"{self.random.randint(1, 65535):x}" for _ in range(8)]
        return self.pick(":".join(groups), "2001:db8::" + ":".join(groups[:3]), "fe80::" + ":".join(groups[:4]))

    def mac(self) -> str:
        return self.pick(":", "-").join(f"{self.random.randint(0, 255):02x}" for _ in range(6))

    def crypto(self) -> str:
        if self.random.random() < 0.5:
            return "0x" + self.random.randbytes(20).hex()
        data = b"\x00" + self.random.randbytes(20)
        data += hashlib.sha256(hashlib.sha256(data).digest()).digest()[:4]
        number, out = int.from_bytes(data, "big"), ""
        while number:
            number, rest = divmod(number, 58)
            out = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"[rest] + out
        return "1" * (len(data) - len(data.lstrip(b"\x00"))) + out

    def birth_date(self) -> str:
        year, month, day = self.date()
        name = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")[
            month - 1
        ]
        return self.pick(
            f"{year}-{month:02}-{day:02}",
            f"{day:02}/{month:02}/{year}",
            f"{day}.{month}.{year}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
        )

    def passport(self) -> str:
        return self.pick(
            self.digits(9), self.pick(*"ABCEX") + self.digits(7), f"{self.digits(2)}AB{self.digits(5)}", "C01X" + self.digits(5)
        )

    def plate(self) -> str:
        return self.pick(
            f"B-{self.pick('MW', 'XY')} {self.digits(4)}",
            f"AB{self.digits(2)} CDE",
            f"AB-{self.digits(3)}-CD",
            f"{self.digits(4)} BCD",
            f"7ABC{self.digits(3)}",
        )


def _verhoeff(number: str) -> int:
    """By composing symmetries of a pentagon, which is what the algorithm's tables hold."""
    check = 0
    for place, digit in enumerate(reversed(number)):
        value = int(digit)
        for _ in range(place % 8):
            value = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)[value]
        one, other = divmod(check, 5), divmod(value, 5)
        turned = one[1] + other[1] if not one[0] else one[1] - other[1]
        check = (one[0] ^ other[0]) * 5 + turned % 5
    return check


SENTENCES = (
    "Please write to {} as soon as you can.",
    "{}",
    "Customer said: {}, then hung up.",
    '{{"field": "{}", "ok": true}}',
    "Contact ({}) was updated.",
    "Hier ist es: {}.",
    "c'est bien {} ?",
    "| id | {} |",
    "Daten={};next",
)
LED = {
    "birth_date": (
        "She was born on {}.",
        "Date of birth: {}",
        "DOB {}",
        "geboren am {} in Bonn",
        "née le {}",
        "fecha de nacimiento: {}",
        "出生{}",
    ),
    "passport": ("Passport number {}", "my passport is {}.", "Reisepass Nr. {}", "passeport n° {}", "pasaporte {}", "护照 {}"),
    "plate": ("license plate {}", "Kennzeichen: {}", "plaque d'immatriculation {}", "the car with number plate {}", "matrícula {}"),
}
ENTITIES = ("email", "phone", "card", "iban", "ssn", "national_id", "passport", "ip", "mac", "birth_date", "crypto", "plate")
CHECKED = ("card", "iban", "national_id", "crypto")


def samples(seed: int, each: int) -> Iterator[Sample]:
    """Texts with one entity each, a tenth of them in full-width digits or with an invisible character inside."""
    maker = Maker(seed)
    for entity in ENTITIES:
        make: Callable[[], str] = getattr(maker, entity)
        for _ in range(each):
            value = make()
            sentence = maker.pick(*LED.get(entity, SENTENCES))
            lead = ""
            if value.startswith(("BSN ", "NIF ")):
                lead, value = value[:4], value[4:]
            noise = maker.random.random()
            if noise < 0.05:
                value = value.translate({48 + digit: 0xFF10 + digit for digit in range(10)})
            elif noise < 0.1:
                place = maker.random.randrange(1, len(value))
                value = value[:place] + "\u200b" + value[place:]
            before, after = sentence.format("\x00").split("\x00")
            start = len(before) + len(lead)
            yield Sample(before + lead + value + after, entity, start, start + len(value))


def near_misses(seed: int, count: int) -> Iterator[Sample]:
    """Texts that look like an entity and are none: wrong check digits, impossible dates, and numbers of other kinds."""
    maker = Maker(seed)
    for number in range(count):
        kind = number % 8
        if kind == 0:
            card = maker.luhn("4" + maker.digits(14))
            value = card[:-1] + str((int(card[-1]) + 5) % 10)
        elif kind == 1:
            value = f"DE00{maker.digits(18)}"
        elif kind == 2:
            value = f"{maker.pick('000', '666')}-{maker.random.randint(10, 99)}-{maker.digits(4)}"
        elif kind == 3:
            value = ".".join(str(maker.random.randint(256, 999)) for _ in range(4))
        elif kind == 4:
            value = f"{maker.digits(2)}:{maker.digits(2)}:{maker.digits(2)}.{maker.digits(3)}"
        elif kind == 5:
            value = f"order {maker.digits(9)}"
        elif kind == 6:
            value = "1" + "".join(maker.random.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789", k=33))
        else:
            value = maker.pick("user@host", "@property", "icon@2x.png", "git@", "a @ b")
        yield Sample(maker.pick(*SENTENCES).format(value), None)


def logs(seed: int, lines: int) -> Iterator[str]:
    """Lines as servers write them, without anybody's address."""
    maker = Maker(seed)
    for _ in range(lines):
        rid = maker.random.randbytes(16).hex()
        day, minute, d = maker.random.randint(10, 28), maker.random.randint(10, 59), maker.digits
        yield maker.pick(
            f"2026-01-{day}T12:{minute}:07.{d(6)}Z INFO request {rid} took {d(3)}.{d(2)} ms",
            f"[{d(10)}.{d(6)}] kernel: slab {d(5)} at 0x{rid[:16]} size={d(7)}",
            f"trace={rid[:8]}-{rid[8:12]}-4{rid[13:16]}-a{rid[17:20]}-{rid[20:]} span={rid[:16]} status=200 bytes={d(6)}",
            f"commit {rid}{rid[:8]} version {d(1)}.{d(2)}.{d(1)}-rc{d(1)} build {d(9)}",
            f"GET /v1/items/{d(8)}?page={d(2)}&after={d(13)} 200 {d(5)}",
            f"job {d(6)}/{d(4)} on node-{d(3)} gpu{d(1)} mem {d(5)}MiB temp {d(2)}C",
        )

"""A corpus apart from the patterns: values and texts by Faker in 35 locales, and by the issuers' public descriptions where Faker has none.

Nothing here is taken from the recognisers or from loadtests.guardrails.corpus: other sentences, other ways of writing, other arithmetic. A
sample is a paragraph of the locale with one entity in it; passports, plates, dates of birth and national ways to write a telephone number
stand behind a word for them, as they do in letters and forms. Needs the package `faker`, in an environment of its own.
"""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator

from faker import Faker

from gateway.core.plugins import Context
from gateway.core.slices import at_once
from gateway.core.types import Verdict
from loadtests.guardrails.corpus import Sample
from loadtests.guardrails.corpus import _verhoeff as verhoeff
from policies.guardrails.secrets import guardrail as secrets

LOCALES = (
    *(
        "en_US",
        "en_GB",
        "en_CA",
        "en_AU",
        "en_IN",
        "en_NZ",
        "de_DE",
        "de_AT",
        "de_CH",
        "fr_FR",
        "fr_CA",
        "it_IT",
        "es_ES",
        "es_MX",
        "es_AR",
    ),
    *(
        "nl_NL",
        "nl_BE",
        "pl_PL",
        "sv_SE",
        "no_NO",
        "da_DK",
        "fi_FI",
        "pt_PT",
        "pt_BR",
        "zh_CN",
        "ja_JP",
        "ko_KR",
        "ru_RU",
        "tr_TR",
        "cs_CZ",
    ),
    *("ro_RO", "hu_HU", "el_GR", "hi_IN", "he_IL"),
)
ANYWHERE = ("{}", "{}.", "({})", "“{}”", "→ {}", "* {}\n", "<td>{}</td>", "{{'v': '{}'}}", "x={};", "{}, {}", "1) {}", "ok, {}!")
PHONE = {
    "en": ("Call me on {}", "phone: {}", "Tel. {}", "my mobile is {}", "ring {} after six"),
    "de": ("Tel.: {}", "Telefon {}", "meine Handynummer: {}", "Mobil {}"),
    "fr": ("Tél. {}", "téléphone : {}", "mon portable {}"),
    "es": ("Teléfono: {}", "Tel. {}", "mi móvil es {}"),
    "it": ("Tel. {}", "telefono {}", "il mio cellulare è {}"),
    "nl": ("Telefoon {}", "tel: {}", "mobiel {}"),
    "pt": ("Telefone: {}", "Tel. {}", "celular {}"),
    "pl": ("Telefon: {}", "tel. {}"),
    "zh": ("电话：{}", "手机号{}"),
    "ja": ("電話 {}", "携帯：{}"),
}
BORN = {
    "en": ("born {}", "Date of birth: {}", "DOB: {}", "birthday {}"),
    "de": ("geboren am {}", "Geburtsdatum: {}", "geb. {}"),
    "fr": ("né le {}", "date de naissance : {}"),
    "es": ("nacido el {}", "fecha de nacimiento: {}"),
    "it": ("nata il {}", "data di nascita: {}"),
    "nl": ("geboortedatum {}", "geboren op {}"),
    "pt": ("nascido em {}", "data de nascimento: {}"),
    "pl": ("urodzona {}", "data urodzenia: {}"),
}
PASSPORT = {
    "en": ("passport no. {}", "Passport: {}", "my passport number is {}"),
    "de": ("Reisepass {}", "Reisepass-Nr.: {}"),
    "fr": ("passeport n° {}", "numéro de passeport : {}"),
    "es": ("pasaporte {}", "número de pasaporte: {}"),
    "it": ("passaporto n. {}",),
    "nl": ("paspoort {}", "paspoortnummer: {}"),
    "pl": ("paszport {}", "numer paszportu: {}"),
    "zh": ("护照号码：{}",),
}
PLATE = {
    "en": ("license plate {}", "number plate: {}", "reg. {}", "vehicle registration {}"),
    "de": ("Kennzeichen {}", "Kfz-Kennzeichen: {}"),
    "fr": ("immatriculation {}", "plaque {}"),
    "es": ("matrícula {}", "placa: {}"),
    "it": ("targa {}",),
    "nl": ("kenteken {}",),
    "pl": ("numer rejestracyjny {}",),
    "pt": ("matrícula {}", "placa {}"),
}
WEIGHTS_NHS = tuple(range(10, 1, -1))


class Apart:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.fakers = {locale: Faker(locale) for locale in LOCALES}
        for number, faker in enumerate(self.fakers.values()):
            faker.seed_instance(seed * 1000 + number)

    def locale(self, *among: str) -> str:
        return self.draw.choice(among or LOCALES)

    def shape(self, shape: str) -> str:
        """# is a digit, ? a capital letter."""
        letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
        signs = {"#": string.digits, "?": letters}
        return "".join(self.draw.choice(signs[sign]) if sign in signs else sign for sign in shape)

    # --- (locale, value, sentence)

    def email(self) -> tuple[str, str, str]:
        locale = self.locale()
        faker = self.fakers[locale]
        plain = self.draw.choice((faker.email, faker.company_email, faker.free_email, faker.ascii_email, faker.safe_email))()
        local, _, host = plain.partition("@")
        local = self.draw.choice((local, local, local.upper(), f"{local}+{faker.random_int(1, 999)}", f"_{local}", f"{local}-x"))
        return locale, f"{local}@{self.draw.choice((host, host, 'mx1.' + host, host.upper()))}", self.draw.choice(ANYWHERE)

    def phone(self) -> tuple[str, str, str]:
        locale = self.locale()
        value = re.split(r" ?x\d", self.fakers[locale].phone_number())[0]
        if value[0] == "+" and self.draw.random() < 0.5:
            return locale, value, self.draw.choice(ANYWHERE)
        return locale, value, self.draw.choice(PHONE.get(locale[:2], PHONE["en"]))

    def card(self) -> tuple[str, str, str]:
        locale = self.locale()
        kind = self.draw.choice(("visa16", "mastercard", "amex", "discover", "jcb16", "diners"))
        number = self.fakers["en_US"].credit_card_number(card_type=kind)
        if kind == "jcb16" and not "3528" <= number[:4] <= "3589":  # ISO/IEC 7812 gives JCB these; Faker all of 35
            return self.card()
        sizes = (4, 6, 5) if len(number) == 15 else (4, 4, 4, 4) if len(number) == 16 else (4, 6, 4)
        separator = self.draw.choice((" ", " ", "-", "", "", "."))
        groups, place = [], 0
        for size in sizes:
            groups.append(number[place : place + size])
            place += size
        return locale, separator.join(groups), self.draw.choice(ANYWHERE)

    def iban(self) -> tuple[str, str, str]:
        locale = self.locale("en_GB", "de_DE", "de_AT", "de_CH", "fr_FR", "it_IT", "es_ES", "nl_NL", "nl_BE", "pl_PL", "fi_FI", "no_NO")
        value = self.fakers[locale].iban()
        if self.draw.random() < 0.6:
            value = " ".join(value[place : place + 4] for place in range(0, len(value), 4))
        return locale, value, self.draw.choice(ANYWHERE)

    def ssn(self) -> tuple[str, str, str]:
        faker = self.fakers["en_US"]
        value = self.draw.choice((faker.ssn, faker.ssn, faker.itin))()
        if self.draw.random() < 0.3:
            return "en_US", value.replace("-", self.draw.choice(("", " "))), self.draw.choice(("SSN {}", "social security number: {}"))
        return "en_US", value, self.draw.choice(ANYWHERE)

    def national_id(self) -> tuple[str, str, str]:
        locale, method, lead = self.draw.choice(
            (
                *(("it_IT", "ssn", ""), ("es_ES", "nif", ""), ("es_ES", "nie", ""), ("nl_NL", "ssn", "BSN "), ("nl_BE", "ssn", "")),
                *(("pl_PL", "pesel", ""), ("sv_SE", "ssn", ""), ("fi_FI", "ssn", ""), ("pt_BR", "cpf", ""), ("zh_CN", "ssn", "")),
                *(("fr_FR", "ssn", ""), ("en_IN", "aadhaar", "Aadhaar "), ("de_CH", "ssn", ""), ("no_NO", "ssn", "")),
                *(("en_GB", "nhs", "NHS no. "), ("de_DE", "tax", "")),
            )
        )
        made: dict[str, Callable[[], str]] = {"nhs": self.nhs, "tax": self.tax, "aadhaar": self.aadhaar}
        value = made[method]() if method in made else getattr(self.fakers[locale], method)()
        return locale, value, lead + self.draw.choice(ANYWHERE).replace("{}, {}", "{}")

    def nhs(self) -> str:
        """NHS Data Dictionary: eleven less the weighted sum modulo eleven."""
        while True:
            body = [self.draw.randint(0, 9) for _ in range(9)]
            check = -sum(one * weight for one, weight in zip(body, WEIGHTS_NHS, strict=True)) % 11
            if check < 10 and len(set(body)) > 2:
                text = "".join(map(str, (*body, check)))
                return self.draw.choice((text, f"{text[:3]} {text[3:6]} {text[6:]}", f"{text[:3]}-{text[3:6]}-{text[6:]}"))

    def aadhaar(self) -> str:
        """UIDAI: twelve digits, none of them 0 or 1 first, Verhoeff's check digit (Faker has Luhn's)."""
        body = self.draw.choice("23456789") + self.shape("##########")
        text = next(body + digit for digit in string.digits if verhoeff(body + digit) == 0)
        return self.draw.choice((text, f"{text[:4]} {text[4:8]} {text[8:]}", f"{text[:4]}-{text[4:8]}-{text[8:]}"))

    def tax(self) -> str:
        """Bundeszentralamt für Steuern: one digit twice among the first ten, ISO 7064 MOD 11,10."""
        body = self.draw.sample(range(10), 9)
        body.insert(self.draw.randrange(1, 9), self.draw.choice(body[1:]))
        if body[0] == 0:
            body[0], body[-1] = body[-1] or 7, 0
            return self.tax()
        carry = 10
        for digit in body:
            carry = 2 * (((digit + carry) % 10) or 10) % 11
        text = "".join(map(str, body)) + str((11 - carry) % 10)
        return self.draw.choice((text, f"{text[:2]} {text[2:5]} {text[5:8]} {text[8:]}"))

    def passport(self) -> tuple[str, str, str]:
        language, shape = self.draw.choice(
            (
                *(
                    ("en", "#########"),
                    ("en", "?########"),
                    ("en", "?#######"),
                    ("en", "??######"),
                    ("en", "??#######"),
                    ("fr", "##??#####"),
                ),
                *(
                    ("es", "???######"),
                    ("it", "??#######"),
                    ("pl", "??#######"),
                    ("zh", "E########"),
                    ("zh", "G########"),
                    ("nl", "??#######"),
                ),
                *(("de", "C##X#####"), ("de", "CF#HJ#K#L"), ("en", "## #######")),
            )
        )
        return f"{language}_", self.shape(shape), self.draw.choice(PASSPORT[language])

    def ip(self) -> tuple[str, str, str]:
        locale = self.locale()
        faker = self.fakers[locale]
        value = self.draw.choice((faker.ipv4_public, faker.ipv4_private, faker.ipv6))()
        if value.startswith(("127.", "0.", "ff")) or ("." in value and int(value.split(".")[0]) > 223):
            return self.ip()
        return locale, value, self.draw.choice((*ANYWHERE, "http://{}/x") if "." in value else ANYWHERE)

    def mac(self) -> tuple[str, str, str]:
        locale = self.locale()
        value = self.fakers[locale].mac_address()
        flat = value.replace(":", "")
        return (
            locale,
            self.draw.choice((value, value.upper(), value.replace(":", "-"), f"{flat[:4]}.{flat[4:8]}.{flat[8:]}")),
            self.draw.choice(ANYWHERE),
        )

    def birth_date(self) -> tuple[str, str, str]:
        language = self.draw.choice(tuple(BORN))
        day = self.fakers["en_US"].date_of_birth(minimum_age=1, maximum_age=95)
        forms = ["%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y", "%Y-%m-%d", "%Y/%m/%d", "%d.%m.%y"]
        if language == "en":
            forms += ["%m/%d/%Y", "%B %d, %Y", "%d %B %Y", "%d %b %Y", "%b %d %Y"]
        return f"{language}_", day.strftime(self.draw.choice(forms)), self.draw.choice(BORN[language])

    def crypto(self) -> tuple[str, str, str]:
        kind = self.draw.randrange(4)
        if kind == 0:
            value = "0x" + self.draw.randbytes(20).hex()
        elif kind < 3:
            value = base58check(self.draw.choice((b"\x00", b"\x05")) + self.draw.randbytes(20))
        else:
            taproot = self.draw.random() < 0.5
            value = segwit(self.draw.randbytes(32 if taproot else 20), 1 if taproot else 0)
        return self.locale(), value, self.draw.choice(ANYWHERE)

    def plate(self) -> tuple[str, str, str]:
        locale = self.locale(
            *("en_GB", "de_DE", "fr_FR", "it_IT", "es_ES", "nl_NL", "pl_PL", "sv_SE", "pt_BR", "de_AT", "de_CH", "pt_PT", "fi_FI"),
            *("no_NO", "da_DK", "hu_HU", "nl_BE", "ro_RO", "tr_TR", "en_US"),
        )
        return locale, self.fakers[locale].license_plate(), self.draw.choice(PLATE.get(locale[:2], PLATE["en"]))

    def sample(self, entity: str) -> Sample:
        locale, value, sentence = getattr(self, entity)()
        faker = self.fakers.get(locale) or self.fakers[next(one for one in LOCALES if one.startswith(locale))]
        before, _, after = sentence.replace("{}, {}", "{}, " + faker.word()).replace("{{", "{").replace("}}", "}").partition("{}")
        lead = f"{faker.sentence()} {before}"
        return Sample(f"{lead}{value}{after} {faker.sentence()}", entity, len(lead), len(lead) + len(value))


def samples(seed: int, each: int) -> Iterator[Sample]:
    apart = Apart(seed)
    for entity in ("email", "phone", "card", "iban", "ssn", "national_id", "passport", "ip", "mac", "birth_date", "crypto", "plate"):
        for _ in range(each):
            yield apart.sample(entity)


SECRETS = (
    *(("github", "ghp_&36"), ("github", "gho_&36"), ("github", "github_pat_&22_&59"), ("aws", "AKIA^16"), ("aws", "ASIA^16")),
    *(("gcp", "AIza_35"), ("gcp", "GOCSPX-_28"), ("gitlab", "glpat-_20"), ("slack", "xoxb-#12-#12-&24"), ("slack", "xapp-1-A^10-#13-%64")),
    *(("stripe", "sk_live_&24"), ("stripe", "rk_live_&99"), ("stripe", "whsec_&32"), ("anthropic", "sk-ant-api03-_93AA")),
    *(("openai", "sk-proj-_74T3BlbkFJ_74"), ("openai", "sk-&20T3BlbkFJ&20"), ("huggingface", "hf_&34"), ("npm", "npm_&36")),
    *(("pypi", "pypi-AgEIcHlwaS5vcmc_80"), ("twilio", "SK%32"), ("sendgrid", "SG._22._43"), ("service_token", "dop_v1_%64")),
    *(("service_token", "shpat_%32"), ("service_token", "dapi%32"), ("service_token", "hvs._90"), ("service_token", "lin_api_&40")),
    *(("service_token", "gsk_&52"), ("service_token", "xai-&80"), ("service_token", "pplx-&48"), ("service_token", "figd__40")),
    *(("jwt", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIx_20._43"), ("connection_string", "postgres://app:&16@db:5432/x")),
    *(("authorization", "Authorization: Bearer _40"), ("password", "password=&10!&3"), ("password", 'api_key: "&32"')),
)
"""(kind, form): & letters and digits, ^ capitals and digits of base32, % hexadecimal, # digits, _ base64url; as many as the number says."""
ALPHABETS = {
    "&": string.ascii_letters + string.digits,
    "^": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "%": "0123456789abcdef",
    "#": string.digits,
    "_": string.ascii_letters + string.digits + "-_",
}


def secret_samples(seed: int, each: int) -> Iterator[tuple[str, str, str]]:
    """(kind, what must not pass, text)."""
    apart = Apart(seed)
    for kind, form in SECRETS:
        for number in range(each):
            value = re.sub(r"([&^%#_])(\d+)", lambda found: "".join(apart.draw.choices(ALPHABETS[found[1]], k=int(found[2]))), form)
            drawn = value.rpartition("=")[2] if kind == "password" else value
            sentence = ("{}", "export KEY={}", "use {} please", '{{"k": "{}"}}', "curl -H '{}'")[number % 5] if "=" not in value else "{}"
            yield kind, drawn[-16:-4], sentence.format(value)


def main() -> None:
    """Recall of secrets, by kind: a text counts as found where what was drawn at random does not pass."""
    guardrail = secrets.build(secrets.SecretsSettings(action="mask"), Context(name="secrets"))
    total, found = Counter[str](), Counter[str]()
    for kind, drawn, text in secret_samples(7, 100):
        verdict = guardrail.check([text])
        verdict = verdict if isinstance(verdict, Verdict) else at_once(verdict)
        total[kind] += 1
        found[kind] += verdict.texts != () and drawn not in verdict.texts[0]
    print("| secret | texts | recall |\n|---|---|---|")
    for kind in total:
        print(f"| {kind} | {total[kind]} | {found[kind] / total[kind]:.3f} |")


def clean(seed: int, paragraphs: int) -> Iterator[str]:
    """Paragraphs with names, companies, prices, times and dates that are nobody's birthday."""
    apart = Apart(seed)
    for number in range(paragraphs):
        faker = apart.fakers[LOCALES[number % len(LOCALES)]]
        about = f"{faker.name()} ({faker.company()}) {faker.date()} {faker.time()}"
        yield f"{faker.paragraph()} {about}: {faker.pricetag()}, {faker.street_address()}. {faker.paragraph()}"


def base58check(data: bytes) -> str:
    """Bitcoin's developer guide: four bytes of a double SHA-256, zeros as ones."""
    data += hashlib.sha256(hashlib.sha256(data).digest()).digest()[:4]
    alphabet = "".join(sorted(set(string.ascii_letters + string.digits) - set("0OIl")))
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = alphabet[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def segwit(program: bytes, version: int) -> str:
    """BIP 173 and BIP 350, by their description of the polynomial."""
    bits = "".join(f"{byte:08b}" for byte in program)
    bits += "0" * (-len(bits) % 5)
    data = [version, *(int(bits[place : place + 5], 2) for place in range(0, len(bits), 5))]
    checked = [3, 3, 0, 2, 3, *data, *[0] * 6]
    state = 1
    for value in checked:
        top, state = state >> 25, (state & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            state ^= generator if top >> bit & 1 else 0
    state ^= 0x2BC830A3 if version else 1
    data += [state >> 5 * (5 - place) & 31 for place in range(6)]
    return "bc1" + "".join("qpzry9x8gf2tvdw0s3jn54khce6mua7l"[one] for one in data)


if __name__ == "__main__":
    main()

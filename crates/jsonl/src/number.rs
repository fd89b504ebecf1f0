//! Numbers: decides whether a 64-bit integer or a double holds a number without loss.
//!
//! A double loses digits if it does not print as the number when it is printed with the same number of digits. 0.1
//! loses none, 3.14159265358979323846 does. (At an exact tie either rounding is accepted, because programs print
//! either.)

use crate::lexer::Cursor;
use crate::parse_error::{ParseError, ParseErrorKind};

/// Value of a number in the type that holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Real(f64),
    /// Neither type holds it without loss.
    Decimal,
}

/// 10^0 to 10^22, which doubles hold exactly.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// Doubles hold all integers up to this absolute value exactly.
pub(crate) const MAX_EXACT_INT: u64 = 1 << 53;

/// A u64 holds every number of up to this many digits, an i64 every number with fewer.
const MAX_DIGITS: u32 = 19;

impl Cursor<'_> {
    #[inline]
    pub(crate) fn number_value(&mut self) -> Result<Number, ParseError> {
        let start = self.at();
        let bytes = self.bytes();
        let bad = ParseErrorKind::BadNumber.at(start);
        let digit = |at: usize| bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10);
        let mut at = start;
        let negative = bytes.get(at) == Some(&b'-');
        at += usize::from(negative);
        let mut digits = Digits::default();
        let Some(first) = digit(at) else { return Err(bad) };
        while let Some(value) = digit(at) {
            digits.push(value);
            at += 1;
        }
        if first == 0 && at > start + usize::from(negative) + 1 {
            return Err(bad);
        }
        let mut is_real = false;
        let mut exponent = 0_i64;
        if bytes.get(at) == Some(&b'.') {
            is_real = true;
            at += 1;
            let digits_start = at;
            while let Some(value) = digit(at) {
                digits.push(value);
                at += 1;
            }
            if at == digits_start {
                return Err(bad);
            }
            exponent = -((at - digits_start) as i64);
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            is_real = true;
            at += 1;
            let is_negative = bytes.get(at) == Some(&b'-');
            at += usize::from(matches!(bytes.get(at), Some(b'-' | b'+')));
            let digits_start = at;
            let mut written = 0_i64;
            while let Some(value) = digit(at) {
                written = (written * 10 + i64::from(value)).min(1 << 40);
                at += 1;
            }
            if at == digits_start {
                return Err(bad);
            }
            exponent += if is_negative { -written } else { written };
        }
        self.seek(at);
        if !is_real {
            return Ok(digits.integer(negative, &bytes[start..at]));
        }
        Ok(digits.real(negative, exponent, &bytes[start..at]))
    }
}

/// The significant digits of a number, up to `MAX_DIGITS`.
#[derive(Default)]
struct Digits {
    value: u64,
    count: u32,
}

impl Digits {
    #[inline]
    fn push(&mut self, digit: u8) {
        if self.count < MAX_DIGITS {
            self.value = self.value * 10 + u64::from(digit);
        }
        self.count += u32::from(self.count > 0 || digit > 0);
    }

    #[inline]
    fn integer(&self, negative: bool, text: &[u8]) -> Number {
        if self.count < MAX_DIGITS {
            let value = self.value as i64;
            return Number::Int(if negative { -value } else { value });
        }
        parsed(text).map_or(Number::Decimal, Number::Int)
    }

    #[inline]
    fn real(&self, negative: bool, exponent: i64, text: &[u8]) -> Number {
        if self.value == 0 && self.count == 0 {
            return Number::Real(if negative { -0.0 } else { 0.0 });
        }
        // One operation on two exact doubles is rounded once, so the result is the nearest double.
        let small = exponent.unsigned_abs() as usize;
        if self.value <= MAX_EXACT_INT
            && self.count < MAX_DIGITS
            && let Some(power) = POWERS_OF_TEN.get(small)
        {
            let value = self.value as f64;
            let value = if exponent < 0 { value / power } else { value * power };
            if self.count <= 15 || self.round_trips(value, exponent) || prints_as(value, text, self.count) {
                return Number::Real(if negative { -value } else { value });
            }
            return Number::Decimal;
        }
        let Some(value) = parsed::<f64>(text).filter(|value| value.is_finite()) else {
            return Number::Decimal;
        };
        match self.round_trips(value.abs(), exponent) || prints_as(value, text, self.count) {
            true => Number::Real(value),
            false => Number::Decimal,
        }
    }

    /// Whether the double, rounded to the decimal places of the number, has the same digits. Computed in 128 bits;
    /// false may also mean that these do not suffice, and that the caller has to compare by printing.
    ///
    /// Half of all doubles print with 17 digits, so most reals need this check. Printing each of them takes five times
    /// as long as parsing it.
    #[inline]
    fn round_trips(&self, value: f64, exponent: i64) -> bool {
        let bits = value.to_bits();
        let raised = (bits >> 52) as i64;
        if self.count >= MAX_DIGITS || raised == 0 {
            return false;
        }
        let mantissa = bits & ((1 << 52) - 1) | 1 << 52;
        // Here doubles are closer together than numbers with this many digits.
        if self.value < mantissa {
            return true;
        }
        let (places, shift) = (-exponent, 1_075 - raised + exponent);
        if !(0..=32).contains(&places) || !(1..=127).contains(&shift) {
            return false;
        }
        // value = mantissa * 2^-(shift + places), and 10^places = 5^places * 2^places.
        let product = u128::from(mantissa) * 5_u128.pow(places as u32);
        let half = 1_u128 << (shift - 1);
        product.checked_add(half).is_some_and(|sum| sum >> shift == u128::from(self.value))
    }
}

fn parsed<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns the nearest double, or `None` if the number is out of range.
pub(crate) fn rounded(text: &[u8]) -> Option<f64> {
    parsed(text).filter(|value: &f64| value.is_finite())
}

/// Like [`Digits::round_trips`], but prints the double. Slow, for the rare cases.
fn prints_as(value: f64, text: &[u8], count: u32) -> bool {
    // A double has at most 767 significant digits.
    if value == 0.0 || count == 0 || count > 800 {
        return false;
    }
    let printed = format!("{:.*e}", count as usize - 1, value.abs());
    let printed = printed.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit);
    let written = text.iter().copied().take_while(|byte| !matches!(byte, b'e' | b'E'));
    printed.eq(written.filter(u8::is_ascii_digit).skip_while(|byte| *byte == b'0'))
}

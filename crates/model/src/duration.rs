//! Durations as people write them: `500ms`, `30s`, `1h30m`, `2d`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration (write it like 500ms, 30s, 10m, 1h30m or 2d)")]
pub struct BadDuration {
    pub text: String,
}

pub fn parse(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration { text: text.to_owned() };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let unit = rest[digits..unit_end].trim();
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        total = number.checked_mul(*millis).and_then(|part| total.checked_add(part)).ok_or_else(bad)?;
        rest = rest[unit_end..].trim_start();
    }
    Ok(Duration::from_millis(total))
}

/// The shortest form that `parse` reads back; anything below a millisecond is dropped.
pub fn format(duration: Duration) -> String {
    let mut left = duration.as_millis() as u64;
    if left == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (unit, millis) in UNITS {
        if left >= millis {
            text.push_str(&format!("{}{unit}", left / millis));
            left %= millis;
        }
    }
    text
}

/// `#[serde(with = "duration::text")]`
pub mod text {
    use super::*;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(duration: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format(*duration))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

/// `#[serde(with = "duration::optional_text")]`
pub mod optional_text {
    use super::*;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(duration: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => out.serialize_str(&format(*duration)),
            None => out.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(input)?.map(|text| parse(&text)).transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_formatted_is_read_back() {
        for millis in [0, 1, 999, 1_000, 90_000, 3_661_001, 86_400_000, 200_000_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&format(duration)), Ok(duration), "{}", format(duration));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "30", "s", "-5s", "1.5h", "10 parsecs", "99999999999999999999s", "999999999999999999d"]
        {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }
}

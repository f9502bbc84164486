//! What decides which nodes a task may go to, and which it would rather go to: taints and tolerations, queues,
//! affinity.
//!
//! A taint keeps tasks away from a node, all but those that tolerate it. A queue is the same from the other side: a
//! task goes only to nodes that serve its queue. Affinity is a wish, and never keeps a task waiting.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `key` or `key=value`, on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Taint {
    pub key: String,
    pub value: Option<String>,
}

/// In a task: `key` puts up with every taint of that key, `key=value` with that one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Toleration {
    pub key: String,
    pub value: Option<String>,
}

impl Toleration {
    pub fn covers(&self, taint: &Taint) -> bool {
        self.key == taint.key && (self.value.is_none() || self.value == taint.value)
    }
}

/// Not of the form `key` or `key=value`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither key nor key=value (without spaces, commas and quotes)")]
pub struct BadTaint(String);

fn split(text: &str) -> Result<(String, Option<String>), BadTaint> {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.contains(|c: char| c.is_whitespace() || c.is_control() || ",\"'".contains(c))
    };
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    if plain(key) && value.is_none_or(plain) {
        return Ok((key.to_owned(), value.map(str::to_owned)));
    }
    Err(BadTaint(text.to_owned()))
}

/// Both are written alike, and stored as they are written.
macro_rules! written_as_text {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = BadTaint;

            fn from_str(text: &str) -> Result<Self, BadTaint> {
                split(text).map(|(key, value)| Self { key, value })
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadTaint;

            fn try_from(text: String) -> Result<Self, BadTaint> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(this: $name) -> Self {
                this.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.value {
                    Some(value) => write!(f, "{}={value}", self.key),
                    None => f.write_str(&self.key),
                }
            }
        }
    };
}
written_as_text!(Taint);
written_as_text!(Toleration);

/// Where a task would rather run. What cannot be had does not keep it waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Affinity {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<Preference>,
    /// A label: attempts of the same dag that ask for this go to nodes with different values of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<String>,
}

impl Affinity {
    pub fn is_empty(&self) -> bool {
        self.prefer.is_empty() && self.spread.is_none()
    }
}

/// Nodes with this value of this label are better, by so much against the task's other preferences.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Preference {
    pub label: String,
    pub value: String,
    pub weight: u32,
}

/// What becomes of a running task whose agent cannot reach any replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It runs on, and its end is reported later.
    #[default]
    Continue,
    /// The agent stops it, before anybody could start it elsewhere.
    Stop,
}

impl OnDisconnect {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerates(toleration: &str, taint: &str) -> bool {
        toleration.parse::<Toleration>().unwrap().covers(&taint.parse().unwrap())
    }

    #[test]
    fn a_key_tolerates_every_value_and_a_value_only_itself() {
        assert!(tolerates("gpu", "gpu") && tolerates("gpu", "gpu=a100"));
        assert!(tolerates("gpu=a100", "gpu=a100"));
        assert!(!tolerates("gpu=a100", "gpu=h100") && !tolerates("gpu=a100", "gpu"));
        assert!(!tolerates("gp", "gpu"));
    }

    #[test]
    fn what_is_not_a_key_with_or_without_a_value_is_refused() {
        for text in ["", "=", "=x", "gpu=", "g pu", "a,b", "gpu=\"x\"", "gpu\n"] {
            assert!(text.parse::<Taint>().is_err(), "{text:?}");
        }
        let taint: Taint = "dedicated=team=a".parse().unwrap();
        assert_eq!((taint.key.as_str(), taint.value.as_deref()), ("dedicated", Some("team=a")));
    }

    #[test]
    fn both_are_stored_as_they_are_written() {
        let taints: Vec<Taint> = serde_json::from_str(r#"["gpu","gpu=a100"]"#).unwrap();
        assert_eq!(serde_json::to_string(&taints).unwrap(), r#"["gpu","gpu=a100"]"#);
        assert!(serde_json::from_str::<Vec<Toleration>>(r#"["a b"]"#).is_err());
    }
}

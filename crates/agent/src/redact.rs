//! Keeps secrets out of logs, in the forms in which they usually slip in: as they are, in JSON, in base64
//! (also inside something longer, as in a basic-auth header) and URL-encoded.
//!
//! Works on lines: a secret of several lines is covered line by line. Does not promise anything about
//! secrets shorter than three characters, which would blacken half of every log, nor about encodings that a
//! task makes up.

use std::borrow::Cow;
use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use regex::bytes::Regex;

const SHORTEST_SECRET: usize = 3;
/// The piece of a secret that is visible inside longer base64 loses up to three characters; below this
/// length what is left would match innocent text.
const SHORTEST_BASE64_CORE: usize = 8;
const INSTEAD: &[u8] = b"***";

#[derive(Debug)]
pub(crate) struct Redactor {
    patterns: Option<Regex>,
    longest: usize,
}

impl Redactor {
    pub fn new(secrets: &[String]) -> Self {
        let mut forms: Vec<String> = secrets.iter().flat_map(|secret| forms(secret)).collect();
        // The alternation takes the first that fits, so the longest must come first.
        forms.sort_by_key(|form| (std::cmp::Reverse(form.len()), form.clone()));
        forms.dedup();
        let longest = forms.first().map_or(0, String::len);
        let patterns = (!forms.is_empty()).then(|| {
            let alternation = forms.iter().map(|form| regex::escape(form)).collect::<Vec<_>>().join("|");
            let mut builder = regex::bytes::RegexBuilder::new(&alternation);
            builder.size_limit(usize::MAX).build().expect("escaped literals are a valid expression")
        });
        Self { patterns, longest }
    }

    /// The length of the longest text it looks for.
    pub fn longest(&self) -> usize {
        self.longest
    }

    pub fn redact<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.patterns {
            Some(patterns) => patterns.replace_all(text, INSTEAD),
            None => Cow::Borrowed(text),
        }
    }

    pub fn redact_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.redact(text.as_bytes())).into_owned()
    }

    /// Moves a cut out of the middle of a secret. All of a secret that begins before the cut must be in view.
    pub fn cut_outside_secrets(&self, text: &[u8], cut: usize) -> usize {
        let Some(patterns) = &self.patterns else { return cut };
        match patterns.find_iter(text).find(|found| found.end() > cut) {
            Some(found) if found.start() == 0 => found.end(),
            Some(found) if found.start() < cut => found.start(),
            _ => cut,
        }
    }
}

fn forms(secret: &str) -> BTreeSet<String> {
    let whole = [secret, secret.trim()].into_iter().filter(|text| !text.contains('\n'));
    // Lines of a key file are long; its short last lines and empty ones are not worth hiding.
    let lines = secret.lines().map(str::trim).filter(|line| secret.contains('\n') && line.len() >= 8);
    let plain: BTreeSet<&str> =
        whole.chain(lines).filter(|text| text.chars().count() >= SHORTEST_SECRET).collect();

    let mut forms = BTreeSet::new();
    for text in plain {
        forms.insert(text.to_owned());
        forms.extend(json_form(text));
        forms.extend(url_forms(text));
        forms.extend(base64_forms(text.as_bytes()));
    }
    if secret.contains('\n') {
        forms.extend(json_form(secret));
        forms.extend(url_forms(secret));
        forms.extend(base64_forms(secret.as_bytes()));
    }
    forms
}

fn json_form(text: &str) -> Option<String> {
    let quoted = serde_json::to_string(text).ok()?;
    Some(quoted[1..quoted.len() - 1].to_owned())
}

fn url_forms(text: &str) -> [String; 4] {
    let encode = |space: &str, upper: bool| {
        let mut encoded = String::with_capacity(text.len() * 3);
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                    encoded.push(byte as char)
                }
                b' ' => encoded.push_str(space),
                _ if upper => encoded.push_str(&format!("%{byte:02X}")),
                _ => encoded.push_str(&format!("%{byte:02x}")),
            }
        }
        encoded
    };
    [encode("%20", true), encode("%20", false), encode("+", true), encode("+", false)]
}

/// The secret alone, and the characters it certainly produces when zero, one or two bytes (modulo three)
/// stand before it.
fn base64_forms(secret: &[u8]) -> BTreeSet<String> {
    let mut forms = BTreeSet::from([STANDARD.encode(secret), URL_SAFE.encode(secret)]);
    for before in 0..3 {
        let padded = [vec![0; before], secret.to_vec()].concat();
        let (first, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let core = &engine.encode(&padded)[first..end];
            if core.len() >= SHORTEST_BASE64_CORE {
                forms.insert(core.to_owned());
            }
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    //! Goal: no usual form of a secret passes, and innocent text does.
    use super::*;

    fn redacted(secrets: &[&str], text: &str) -> String {
        let secrets: Vec<String> = secrets.iter().map(|secret| secret.to_string()).collect();
        Redactor::new(&secrets).redact_text(text)
    }

    #[test]
    fn plain_json_url_and_base64_forms_are_hidden() {
        let secret = "p@ss \"wörd/1";
        for form in [
            secret.to_owned(),
            serde_json::to_string(secret).unwrap(),
            "p%40ss%20%22w%C3%B6rd%2F1".to_owned(),
            "p%40ss+%22w%c3%b6rd%2f1".to_owned(),
            STANDARD.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
        ] {
            let line = redacted(&[secret], &format!("before {form} after"));
            assert!(!line.contains(&form) && line.contains("***"), "{form} passed: {line}");
        }
    }

    #[test]
    fn a_secret_inside_a_basic_auth_header_is_hidden_at_every_alignment() {
        for user in ["a", "ab", "abc", "abcd"] {
            let header = STANDARD.encode(format!("{user}:correct-horse-battery"));
            let line = redacted(&["correct-horse-battery"], &header);
            let left = line.replace("***", "");
            assert!(line.contains("***") && left.len() < 12, "{line}");
        }
    }

    #[test]
    fn the_longest_secret_wins_and_short_ones_are_ignored() {
        assert_eq!(redacted(&["token", "token-long"], "token-long token"), "*** ***");
        assert_eq!(redacted(&["", "ab"], "ab c"), "ab c");
    }

    #[test]
    fn every_line_of_a_key_is_hidden() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n";
        assert_eq!(redacted(&[key], "x\nMIIEvQIBADANBg\ny"), "x\n***\ny");
    }

    #[test]
    fn a_cut_never_falls_into_a_secret() {
        let redactor = Redactor::new(&["secret".to_owned()]);
        assert_eq!(redactor.cut_outside_secrets(b"xx secret yy", 5), 3);
        assert_eq!(redactor.cut_outside_secrets(b"secret yy", 2), 6);
        assert_eq!(redactor.cut_outside_secrets(b"xx secret yy", 9), 9);
        assert_eq!(redactor.cut_outside_secrets(b"xx secret yy", 2), 2);
    }
}

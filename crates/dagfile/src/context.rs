//! What reading a file carries along: the problems so far, the way to the field being read, the files
//! that were embedded, and a budget for guesses.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use minijinja::Environment;
use tenure_model::EmbeddedFile;

use crate::yaml::{Place, YamlError};
use crate::{Diagnostic, Diagnostics, FileSource};

const MOST_DIAGNOSTICS: usize = 20;
/// Comparing two names costs the product of their lengths. This many steps take well below 0.1 s;
/// after that, errors come without a suggestion instead of late.
const GUESS_BUDGET: usize = 10_000_000;

pub struct Context<'s> {
    file: &'s str,
    files: &'s dyn FileSource,
    pub embedded: BTreeMap<String, EmbeddedFile>,
    pub templates: Environment<'static>,
    diagnostics: Vec<Diagnostic>,
    said: HashSet<(usize, usize, String)>,
    truncated: bool,
    guess_budget: usize,
}

impl<'s> Context<'s> {
    pub fn new(file: &'s str, files: &'s dyn FileSource) -> Self {
        Self {
            file,
            files,
            embedded: BTreeMap::new(),
            templates: Environment::new(),
            diagnostics: vec![],
            said: HashSet::new(),
            truncated: false,
            guess_budget: GUESS_BUDGET,
        }
    }

    pub fn files(&self) -> &'s dyn FileSource {
        self.files
    }

    pub fn error(&mut self, at: Place, field: &Field<'_>, message: impl Into<String>) {
        if self.diagnostics.len() >= MOST_DIAGNOSTICS {
            self.truncated = true;
            return;
        }
        let message = message.into();
        // An alias repeats the same mistake wherever it is used.
        if self.said.insert((at.line, at.column, message.clone())) {
            let Place { line, column } = at;
            self.diagnostics.push(Diagnostic {
                file: self.file.to_owned(),
                line,
                column,
                field: field.to_string(),
                message,
            });
        }
    }

    pub fn yaml_error(&mut self, error: YamlError, field: &Field<'_>) {
        self.error(error.at, field, error.message);
    }

    /// Enough is known: nothing that is found from here on would be shown.
    pub fn is_full(&self) -> bool {
        self.truncated
    }

    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Diagnostics> {
        match value {
            Some(value) if self.diagnostics.is_empty() => Ok(value),
            _ => {
                assert!(!self.diagnostics.is_empty(), "a file is not refused without a reason");
                self.diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
                Err(Diagnostics { list: self.diagnostics, truncated: self.truncated })
            }
        }
    }

    /// ` (did you mean "transform"?)`, or nothing.
    pub fn suggestion<'c>(&mut self, wrong: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
        match self.closest(wrong, candidates) {
            Some(name) => format!(" (did you mean {name:?}?)"),
            None => String::new(),
        }
    }

    fn closest<'c>(&mut self, wrong: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
        let tolerated = 1 + wrong.len() / 4;
        let mut best = None;
        for name in candidates {
            if name.len().abs_diff(wrong.len()) > tolerated {
                continue;
            }
            self.guess_budget = self.guess_budget.checked_sub(name.len() * wrong.len())?;
            let distance = strsim::osa_distance(wrong, name);
            if distance <= tolerated && best.is_none_or(|(least, _)| distance < least) {
                best = Some((distance, name));
            }
        }
        best.map(|(_, name)| name)
    }
}

/// The way to a field. Printed only when something is wrong with it.
#[derive(Clone, Copy, Debug)]
pub enum Field<'p> {
    Root,
    Key(&'p Field<'p>, &'p str),
    Index(&'p Field<'p>, usize),
}

impl<'p> Field<'p> {
    pub fn key(&'p self, name: &'p str) -> Field<'p> {
        Field::Key(self, name)
    }

    pub fn index(&'p self, index: usize) -> Field<'p> {
        Field::Index(self, index)
    }
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Field::Root, name) => f.write_str(name),
            Self::Key(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

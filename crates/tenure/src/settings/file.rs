//! The config file: TOML, one flat list of settings. Those whose names begin alike may stand in a section:
//! `strategy` under `[placement]` is `placement_strategy`.

use std::path::Path;

use toml_edit::{Document, Item, Table, Value};

use super::knobs::KNOBS;
use super::{Problems, Source};

/// Key, value as it would be written on a command line, and where it stands.
pub type Entry = (&'static str, String, Source);

/// How much a wrong name must resemble a right one to be worth mentioning.
const LIKENESS: f64 = 0.75;

pub fn read(path: &Path) -> Result<Vec<Entry>, Problems> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let file = path.display();
        Problems(vec![format!(
            "the config file {file} cannot be read: {error} (named by --config or TENURE_CONFIG)"
        )])
    })?;
    parse(path, &text)
}

pub fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, Problems> {
    let at = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
    let document = Document::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| at(span.start));
        Problems(vec![format!("{}:{line}: {}", path.display(), error.message())])
    })?;
    let (mut entries, mut problems): (Vec<Entry>, Vec<String>) = (vec![], vec![]);
    for (name, start, item) in settings(document.as_table()) {
        let (name, line) = (name.as_str(), at(start));
        let mut wrong = |why: String| problems.push(format!("{}:{line}: {why}", path.display()));
        let Some(knob) = KNOBS.iter().find(|knob| knob.key == name) else {
            wrong(unknown(name, item));
            continue;
        };
        if let Some((_, _, before)) = entries.iter().find(|(key, ..)| *key == knob.key) {
            wrong(format!("{name} is set twice: also at {before}"));
            continue;
        }
        match plain(item) {
            Some(value) => {
                entries.push((knob.key, value, Source::File { path: path.to_owned(), line }));
            }
            None => wrong(format!(
                "{name} takes one value, in quotes or as a number, and not {}",
                an(item.type_name())
            )),
        }
    }
    if problems.is_empty() { Ok(entries) } else { Err(Problems(problems)) }
}

/// Every setting with its full name and where its name stands.
fn settings(table: &Table) -> Vec<(String, usize, &Item)> {
    let start = |table: &Table, name: &str| {
        table.key(name).and_then(toml_edit::Key::span).map_or(0, |span| span.start)
    };
    let mut all = vec![];
    for (name, item) in table.iter() {
        let prefix = format!("{name}_");
        match item.as_table().filter(|_| KNOBS.iter().any(|knob| knob.key.starts_with(&prefix))) {
            Some(section) => {
                let inside = section.iter();
                all.extend(inside.map(|(key, item)| (format!("{prefix}{key}"), start(section, key), item)));
            }
            None => all.push((name.to_owned(), start(table, name), item)),
        }
    }
    all
}

fn plain(item: &Item) -> Option<String> {
    match item.as_value()? {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        // Not a setting's value so far, but it is told so where the setting is read.
        Value::Boolean(yes) => Some(yes.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::InlineTable(_) => None,
    }
}

fn unknown(name: &str, item: &Item) -> String {
    if item.is_table() {
        return format!(
            "there is no section [{name}]: write the settings side by side, with their full names"
        );
    }
    // Dashes as on the command line, and the prefix of the environment, are close enough to be named.
    let plain = name.to_lowercase().replace('-', "_");
    let plain = plain.strip_prefix("tenure_").unwrap_or(&plain);
    let likeness = |key: &str| strsim::jaro_winkler(plain, key);
    let nearest = KNOBS.iter().max_by(|a, b| likeness(a.key).total_cmp(&likeness(b.key)));
    match nearest.filter(|knob| likeness(knob.key) > LIKENESS) {
        Some(knob) => format!("there is no setting \"{name}\" (did you mean \"{}\"?)", knob.key),
        None => format!("there is no setting \"{name}\"; those there are: tenure config check"),
    }
}

fn an(thing: &str) -> String {
    let article = if thing.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {thing}")
}

//! Readers of single values: each returns what it read, or says what is wrong and returns nothing.

use std::time::Duration;

use tenure_model::duration;

use crate::context::{Context, Field};
use crate::keys::{self, Key, Role};
use crate::yaml::{self, Data, Kind, Node, Place, Scalar};

/// A year: whatever is meant to take longer has no place in a dag file.
const LONGEST_DURATION: Duration = Duration::from_secs(366 * 86_400);

/// The entries of a map whose keys are in a table. Unknown keys are reported when it is opened.
pub struct Fields<'n> {
    entries: &'n [(yaml::Key, Node)],
    table: &'static [Key],
    /// The keys the reader has looked for, to keep table and reader together.
    asked: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// `what` reads like `the dag` or `task "load"`.
    pub fn open(
        cx: &mut Context<'_>,
        node: &'n Node,
        field: &Field<'_>,
        table: &'static [Key],
        what: &str,
    ) -> Option<Self> {
        let Data::Map(entries) = &node.data else {
            cx.error(
                node.at,
                field,
                format!("{what} must be a map of keys and values, not {}", node.describe()),
            );
            return None;
        };
        for (key, _) in entries {
            if !keys::names(table).any(|name| name == key.text) {
                let guess = cx.suggestion(&key.text, keys::names(table));
                let message = format!("{what} has an unknown key {:?}{guess}", yaml::shorten(&key.text));
                cx.error(key.at, &field.key(&key.text), message);
            }
        }
        for required in keys::of_role(table, Role::Required) {
            if !entries.iter().any(|(key, value)| key.text == required.name && !value.is_null()) {
                let message = format!(
                    "{what} has no {:?}; add it like {}: {}",
                    required.name, required.name, required.sample
                );
                cx.error(node.at, &field.key(required.name), message);
            }
        }
        Some(Self { entries, table, asked: vec![] })
    }

    /// A key without a value counts as not written.
    pub fn get(&mut self, name: &'static str) -> Option<&'n Node> {
        assert!(keys::names(self.table).any(|known| known == name), "{name:?} is in the table of keys");
        self.asked.push(name);
        self.entries.iter().find(|(key, node)| key.text == name && !node.is_null()).map(|(_, node)| node)
    }

    /// Called at the end: a key of the table that nobody reads would be accepted and ignored.
    pub fn done(self) {
        for key in self.table {
            assert!(self.asked.contains(&key.name), "key {:?} is read", key.name);
        }
    }
}

/// Something else than `wanted` stands there.
pub fn wrong<T>(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, wanted: &str) -> Option<T> {
    cx.error(node.at, field, format!("{field} must be {wanted}, not {}", node.describe()));
    None
}

fn scalar<'n>(cx: &mut Context<'_>, node: &'n Node, field: &Field<'_>, wanted: &str) -> Option<&'n Scalar> {
    match &node.data {
        Data::Scalar(scalar) if scalar.kind != Kind::Null => Some(scalar),
        _ => wrong(cx, node, field, wanted),
    }
}

/// Any scalar, as it is spelled: `exec: [true]` means the program, `version: 1.10` is not `1.1`.
pub fn text(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let scalar = scalar(cx, node, field, "text")?;
    if scalar.text.contains('\0') {
        cx.error(node.at, field, format!("{field} contains a NUL character, which no program can be given"));
        return None;
    }
    Some(scalar.text.clone())
}

/// Text with something in it.
pub fn name(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let text = text(cx, node, field)?;
    if text.trim().is_empty() {
        return wrong(cx, node, field, "a name");
    }
    Some(text)
}

/// Text that is rendered when the task is handed out; its syntax is checked now.
pub fn template(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let source = text(cx, node, field)?;
    check_template(cx, node, field, &source).then_some(source)
}

pub fn check_template(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, source: &str) -> bool {
    if !["{{", "{%", "{#"].iter().any(|opening| source.contains(opening)) {
        return true;
    }
    let Err(error) = cx.templates.template_from_named_str("", source).map(|_| ()) else { return true };
    let line_in_text = error.line().unwrap_or(1).max(1);
    let line = match &node.data {
        Data::Scalar(scalar) if scalar.literal => node.at.line + line_in_text - 1,
        _ => node.at.line,
    };
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    // `${#name}` is the length of a variable in bash, and the beginning of a comment in a template.
    let hint = if source.contains("${#") { r#" (write "${#" as "${{ '{#' }}")"# } else { "" };
    let at = if line == node.at.line { node.at } else { Place { line, column: 1 } };
    cx.error(at, field, format!("{field} is not a valid template: {reason}{hint}"));
    false
}

pub fn flag(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<bool> {
    match scalar(cx, node, field, "true or false")?.kind {
        Kind::Bool(flag) => Some(flag),
        _ => wrong(cx, node, field, "true or false"),
    }
}

pub fn whole(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, least: i64, most: i64) -> Option<i64> {
    let wanted = format!("a whole number from {least} to {most}");
    match scalar(cx, node, field, &wanted)?.kind {
        Kind::Int(number) if (least..=most).contains(&number) => Some(number),
        _ => wrong(cx, node, field, &wanted),
    }
}

pub fn count(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, least: u32, most: i64) -> Option<u32> {
    let number = whole(cx, node, field, least.into(), most)?;
    Some(u32::try_from(number).expect("the bounds of a count fit"))
}

pub fn duration(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Duration> {
    let wanted = "a duration like 30s, 10m or 1h30m";
    let text = &scalar(cx, node, field, wanted)?.text;
    match duration::parse(text) {
        Ok(duration) if duration <= LONGEST_DURATION => Some(duration),
        Ok(_) => wrong(cx, node, field, "a duration of at most 366d"),
        Err(_) => wrong(cx, node, field, wanted),
    }
}

/// A duration in which something can happen.
pub fn positive_duration(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Duration> {
    match duration(cx, node, field)? {
        Duration::ZERO => wrong(cx, node, field, "longer than nothing"),
        duration => Some(duration),
    }
}

pub fn choice<T: Copy>(
    cx: &mut Context<'_>,
    node: &Node,
    field: &Field<'_>,
    choices: &[(&'static str, T)],
) -> Option<T> {
    let text = text(cx, node, field)?;
    if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
        return Some(*value);
    }
    let guess = cx.suggestion(&text, choices.iter().map(|(name, _)| *name));
    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    let message = format!("{field} must be one of {}, not {}{guess}", names.join(", "), node.describe());
    cx.error(node.at, field, message);
    None
}

pub fn list<'n>(cx: &mut Context<'_>, node: &'n Node, field: &Field<'_>) -> Option<&'n [Node]> {
    match &node.data {
        Data::List(items) => Some(items),
        _ => wrong(cx, node, field, "a list"),
    }
}

/// A list, or a single value that stands for a list of one.
pub fn one_or_many<'n>(cx: &mut Context<'_>, node: &'n Node, field: &Field<'_>) -> Option<&'n [Node]> {
    match &node.data {
        Data::Scalar(_) => Some(std::slice::from_ref(node)),
        _ => list(cx, node, field),
    }
}

pub fn map<'n>(cx: &mut Context<'_>, node: &'n Node, field: &Field<'_>) -> Option<&'n [(yaml::Key, Node)]> {
    match &node.data {
        Data::Map(entries) => Some(entries),
        _ => wrong(cx, node, field, "a map of names and values"),
    }
}

/// Every item read by the same reader; nothing if one of them is wrong.
pub fn each<T>(
    cx: &mut Context<'_>,
    items: &[Node],
    field: &Field<'_>,
    reader: impl Fn(&mut Context<'_>, &Node, &Field<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let read: Vec<_> =
        items.iter().enumerate().map(|(index, item)| reader(cx, item, &field.index(index))).collect();
    read.into_iter().collect()
}

/// An amount of a resource in thousandths of a unit, with the suffixes that its name allows.
pub fn amount(
    cx: &mut Context<'_>,
    node: &Node,
    field: &Field<'_>,
    suffixes: &[(&str, f64)],
    most: f64,
) -> Option<u64> {
    let examples: Vec<_> = suffixes.iter().map(|(suffix, _)| format!("1{suffix}")).collect();
    let wanted = match examples.is_empty() {
        true => "a number that is not negative".to_owned(),
        false => format!("a number or an amount like {}", examples.join(", ")),
    };
    let text = scalar(cx, node, field, &wanted)?.text.trim();
    let (digits, factor) = suffixes
        .iter()
        .filter_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .min_by_key(|(digits, _)| digits.len())
        .unwrap_or((text, 1.0));
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match digits.parse::<f64>().map(|number| number * factor) {
        Ok(number) if plain && number <= most => Some((number * 1000.0).round() as u64),
        Ok(number) if plain && number > most => wrong(cx, node, field, "an amount that some machine has"),
        _ => wrong(cx, node, field, &wanted),
    }
}

/// Names of dags and tasks: part of paths, urls, file names and template lookups.
pub fn check_id(cx: &mut Context<'_>, at: Place, field: &Field<'_>, what: &str, id: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let problem = if id.is_empty() {
        "is empty".to_owned()
    } else if id.len() > keys::LONGEST_ID {
        format!("is longer than {} characters", keys::LONGEST_ID)
    } else if let Some(bad) = id.chars().find(|c| !allowed(*c)) {
        format!("contains {bad:?} (letters, digits, '_', '.' and '-' are allowed)")
    } else if id.chars().all(|c| c == '.') {
        "is made of dots alone".to_owned()
    } else {
        return true;
    };
    cx.error(at, field, format!("the {what} id {:?} {problem}", yaml::shorten(id)));
    false
}

//! YAML text as a tree of nodes that know their place.
//!
//! Promises: depth and expanded size are bounded while reading, before anything recursive exists, so
//! that no text overflows the stack or the memory; a key that appears twice is an error, not a choice.
//! Scalars follow the YAML 1.2 core schema (`yes` and `on` are texts) and keep their spelling, so that a
//! version `1.10` does not become `1.1`.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr::Scalar as CoreScalar;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput, Tag};
use serde_json::{Map, Value};

/// A dag file needs about six levels; what goes deeper is a mistake or an attack.
pub const DEEPEST: usize = 64;
/// What a file may grow to when its aliases are expanded. Without aliases, 4 MiB of text stay below it
/// unless they are millions of one-letter items.
const MOST_EXPANDED: usize = 32 << 20;
/// Memory of a node beyond its text, roughly.
const NODE_COST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

impl Place {
    pub const START: Place = Place { line: 1, column: 1 };
}

impl From<&Marker> for Place {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line(), column: marker.col() + 1 }
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub at: Place,
    pub data: Data,
}

#[derive(Clone, Debug)]
pub enum Data {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub struct Key {
    pub at: Place,
    pub text: String,
}

#[derive(Clone, Debug)]
pub struct Scalar {
    /// As it was written, without quotes and indentation.
    pub text: String,
    pub kind: Kind,
    /// A literal block (`|`): its lines are lines of the file, the first one at its place.
    pub literal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

#[derive(Debug)]
pub struct YamlError {
    pub at: Place,
    pub message: String,
}

impl Node {
    pub fn is_null(&self) -> bool {
        matches!(&self.data, Data::Scalar(scalar) if scalar.kind == Kind::Null)
    }

    /// For error messages: what is there instead of what should be.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Scalar(Scalar { kind: Kind::Null, .. }) => "nothing".into(),
            Data::Scalar(Scalar { kind: Kind::Text, text, .. }) => format!("{:?}", shorten(text)),
            Data::Scalar(scalar) => shorten(&scalar.text),
            Data::List(_) => "a list".into(),
            Data::Map(_) => "a map".into(),
        }
    }

    /// The same value in JSON. Fails on what JSON does not have.
    pub fn to_json(&self) -> Result<Value, YamlError> {
        Ok(match &self.data {
            Data::Scalar(scalar) => match scalar.kind {
                Kind::Null => Value::Null,
                Kind::Bool(flag) => flag.into(),
                Kind::Int(number) => number.into(),
                Kind::Float(number) if number.is_finite() => number.into(),
                Kind::Float(_) => {
                    let message = format!("{} is not a number that JSON has", scalar.text);
                    return Err(YamlError { at: self.at, message });
                }
                Kind::Text => scalar.text.clone().into(),
            },
            Data::List(items) => Value::Array(items.iter().map(Node::to_json).collect::<Result<_, _>>()?),
            Data::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(key.text.clone(), value.to_json()?);
                }
                Value::Object(map)
            }
        })
    }
}

pub fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reads the only document of `text`; `Ok(None)` if there is none. Problems that do not keep the rest
/// from being read, such as a key that appears twice, go to `problems`.
pub fn read(text: &str, problems: &mut Vec<YamlError>) -> Result<Option<Node>, YamlError> {
    let mut builder = Builder { open: vec![], anchors: HashMap::new(), expanded: 0, root: None, problems };
    for event in Parser::new(StrInput::new(text)) {
        let (event, span) = event.map_err(|error| {
            let at = (error.marker()).into();
            // The scanner looks ahead, and has a limit of its own for what it finds there.
            match error.info() {
                info if info.contains("recursion limit") => too_deep(at),
                info => YamlError { at, message: format!("this is not YAML: {info}") },
            }
        })?;
        builder.take(event, (&span.start).into())?;
    }
    Ok(builder.root)
}

fn too_deep(at: Place) -> YamlError {
    YamlError { at, message: format!("this is nested more than {DEEPEST} levels deep") }
}

struct Builder<'p> {
    open: Vec<Collection>,
    anchors: HashMap<usize, Anchored>,
    expanded: usize,
    root: Option<Node>,
    problems: &'p mut Vec<YamlError>,
}

/// A node that aliases may repeat, and what each repetition costs.
struct Anchored {
    node: Node,
    cost: usize,
    height: usize,
}

/// A list or map that is not closed yet.
struct Collection {
    at: Place,
    anchor: usize,
    expanded_before: usize,
    /// Levels of collections from here downwards.
    height: usize,
    data: Data,
    /// The key that waits for its value.
    key: Option<Key>,
    /// Where each key of a map was first seen.
    seen: HashMap<String, Place>,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, at: Place) -> Result<(), YamlError> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(YamlError { at, message: "a second document begins here; a file holds one dag".into() })
            }
            Event::DocumentStart(_) => Ok(()),
            Event::Scalar(text, style, anchor, tag) => {
                let node = scalar(text, style, tag.as_deref(), at)?;
                self.charge(node_cost(&node), at)?;
                self.add(node, 0, anchor, self.expanded)
            }
            Event::SequenceStart(anchor, _) => self.open(Data::List(vec![]), anchor, at),
            Event::MappingStart(anchor, _) => self.open(Data::Map(vec![]), anchor, at),
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, at),
        }
    }

    fn open(&mut self, data: Data, anchor: usize, at: Place) -> Result<(), YamlError> {
        self.check_depth(1, at)?;
        let expanded_before = self.expanded;
        self.charge(NODE_COST, at)?;
        let seen = HashMap::new();
        self.open.push(Collection { at, anchor, expanded_before, height: 1, data, key: None, seen });
        Ok(())
    }

    fn close(&mut self) -> Result<(), YamlError> {
        let Collection { at, anchor, expanded_before, height, data, .. } =
            self.open.pop().expect("the parser closes what it opened");
        self.add(Node { at, data }, height, anchor, expanded_before)
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Result<(), YamlError> {
        let Some(Anchored { cost, height, .. }) = self.anchors.get(&anchor) else {
            return Err(YamlError { at, message: "this alias lies inside the node that it names".into() });
        };
        let (cost, height) = (*cost, *height);
        self.check_depth(height, at)?;
        self.charge(cost, at)?;
        let node = self.anchors[&anchor].node.clone();
        self.add(Node { at, ..node }, height, 0, self.expanded)
    }

    fn check_depth(&self, more: usize, at: Place) -> Result<(), YamlError> {
        if self.open.len() + more > DEEPEST {
            return Err(too_deep(at));
        }
        Ok(())
    }

    fn charge(&mut self, cost: usize, at: Place) -> Result<(), YamlError> {
        self.expanded += cost;
        if self.expanded > MOST_EXPANDED {
            let limit = MOST_EXPANDED >> 20;
            return Err(YamlError { at, message: format!("the file expands to more than {limit} MiB here") });
        }
        Ok(())
    }

    fn add(
        &mut self,
        node: Node,
        height: usize,
        anchor: usize,
        expanded_before: usize,
    ) -> Result<(), YamlError> {
        if anchor != 0 {
            // A scalar was charged before its baseline was taken; its own cost is the answer there.
            let cost = (self.expanded - expanded_before).max(node_cost(&node));
            self.anchors.insert(anchor, Anchored { node: node.clone(), cost, height });
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.height = parent.height.max(height + 1);
        match (&mut parent.data, parent.key.take()) {
            (Data::List(items), _) => items.push(node),
            (Data::Map(entries), Some(key)) => match parent.seen.get(&key.text) {
                Some(first) => {
                    let message = format!("key {:?} appears twice (first on line {})", key.text, first.line);
                    self.problems.push(YamlError { at: key.at, message });
                }
                None => {
                    parent.seen.insert(key.text.clone(), key.at);
                    entries.push((key, node));
                }
            },
            (Data::Map(_), None) => parent.key = Some(as_key(node)?),
            (Data::Scalar(_), _) => unreachable!("only collections are opened"),
        }
        Ok(())
    }
}

fn as_key(node: Node) -> Result<Key, YamlError> {
    match node.data {
        Data::Scalar(Scalar { kind: Kind::Null, .. }) | Data::List(_) | Data::Map(_) => {
            let message = format!("a key must be a name, not {}", node.describe());
            Err(YamlError { at: node.at, message })
        }
        Data::Scalar(scalar) => Ok(Key { at: node.at, text: scalar.text }),
    }
}

fn node_cost(node: &Node) -> usize {
    match &node.data {
        Data::Scalar(scalar) => NODE_COST + scalar.text.len(),
        Data::List(_) | Data::Map(_) => NODE_COST,
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, at: Place) -> Result<Node, YamlError> {
    let bad = |message| YamlError { at, message };
    if let Some(tag) = tag.filter(|tag| !tag.is_yaml_core_schema()) {
        return Err(bad(format!("the tag {}{} is not supported", tag.handle, tag.suffix)));
    }
    let tag = tag.map(Cow::Borrowed);
    let resolved = CoreScalar::parse_from_cow_and_metadata(Cow::Borrowed(&text), style, tag.as_ref());
    let kind = match resolved {
        Some(CoreScalar::Null) => Kind::Null,
        Some(CoreScalar::Boolean(flag)) => Kind::Bool(flag),
        Some(CoreScalar::Integer(number)) => Kind::Int(number),
        Some(CoreScalar::FloatingPoint(number)) => Kind::Float(number.into_inner()),
        Some(CoreScalar::String(_)) => Kind::Text,
        None => return Err(bad(format!("{:?} does not fit its tag", shorten(&text)))),
    };
    let literal = style == ScalarStyle::Literal;
    Ok(Node { at, data: Data::Scalar(Scalar { text: text.into_owned(), kind, literal }) })
}

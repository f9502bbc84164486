//! Parameters of a dag: the values a run gets, and what they must look like.
//!
//! A parameter's schema is a small part of JSON Schema, the part that people use for parameters. Every
//! keyword that is not in [`KEYWORDS`] is refused when the dag is registered, so that nobody believes in
//! a check that is not made.

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde_json::{Map, Value};

use crate::DagSpec;

type Schema = BTreeMap<String, Value>;

/// The keywords a schema may use. `format`, `title` and `examples` are for people and forms: nothing is
/// checked.
pub const KEYWORDS: [&str; 13] = [
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "title",
    "examples",
];

pub const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("parameter {param:?} {problem}")]
pub struct ParamError {
    pub param: String,
    /// Reads on after the name: `must be at least 1, not 0`.
    pub problem: String,
}

/// The parameters of a run: every declared one, from `conf` or else its default. Keys of `conf` that are
/// no parameters are allowed; templates see them as `conf.*`.
pub fn validate(spec: &DagSpec, conf: &Value) -> Result<Map<String, Value>, Vec<ParamError>> {
    let mut values = Map::new();
    let mut errors = vec![];
    if !conf.is_object() && !conf.is_null() {
        errors.push(ParamError {
            param: "conf".into(),
            problem: format!("must be an object, not {}", show(conf)),
        });
    }
    for (name, param) in &spec.params {
        let Some(value) = conf.get(name).or(param.default.as_ref()) else {
            let problem = "has no default: the trigger must set it in conf".into();
            errors.push(ParamError { param: name.clone(), problem });
            continue;
        };
        errors.extend(
            check_value(&param.schema, value)
                .into_iter()
                .map(|problem| ParamError { param: name.clone(), problem }),
        );
        values.insert(name.clone(), value.clone());
    }
    if errors.is_empty() { Ok(values) } else { Err(errors) }
}

/// What is wrong with a schema itself: `(keyword, problem)`.
pub fn check_schema(schema: &Schema) -> Vec<(String, String)> {
    schema
        .iter()
        .filter_map(|(keyword, value)| Some((keyword.clone(), keyword_problem(keyword, value)?)))
        .collect()
}

/// What keeps a value from meeting a schema that `check_schema` has nothing against.
pub fn check_value(schema: &Schema, value: &Value) -> Vec<String> {
    schema.iter().filter_map(|(keyword, bound)| value_problem(keyword, bound, value)).collect()
}

fn keyword_problem(keyword: &str, value: &Value) -> Option<String> {
    let (fits, wanted) = match keyword {
        "type" => {
            let names = type_names(value);
            let known =
                !names.is_empty() && names.iter().all(|name| name.is_some_and(|name| TYPES.contains(&name)));
            (known, format!("one of {}, or a list of those", TYPES.join(", ")))
        }
        "enum" => {
            (value.as_array().is_some_and(|list| !list.is_empty()), "a list of the allowed values".into())
        }
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
            (value.is_number(), "a number".into())
        }
        "minLength" | "maxLength" => (value.is_u64(), "a whole number of characters".into()),
        "pattern" => match value.as_str().map(Regex::new) {
            Some(Ok(_)) => (true, String::new()),
            Some(Err(error)) => {
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
                return Some(format!("is not a regular expression: {reason}"));
            }
            None => (false, "a regular expression".into()),
        },
        "format" | "title" => (value.is_string(), "text".into()),
        "examples" => (value.is_array(), "a list".into()),
        "const" => (true, String::new()),
        _ => return Some(format!("is not a known keyword (known: {})", KEYWORDS.join(", "))),
    };
    (!fits).then(|| format!("must be {wanted}, not {}", show(value)))
}

fn value_problem(keyword: &str, bound: &Value, value: &Value) -> Option<String> {
    let length = || value.as_str().map(|text| text.chars().count() as u64);
    let (fits, wanted) = match keyword {
        "type" => {
            let names: Vec<_> = type_names(bound).into_iter().flatten().collect();
            (names.iter().any(|name| is_of_type(value, name)), format!("of type {}", names.join(" or ")))
        }
        "enum" => {
            let allowed = bound.as_array().map(Vec::as_slice).unwrap_or_default();
            let list: Vec<_> = allowed.iter().map(|value| show(value).to_string()).collect();
            (allowed.iter().any(|one| same(one, value)), format!("one of {}", list.join(", ")))
        }
        "const" => (same(bound, value), show(bound).to_string()),
        "minimum" => (compare(value, bound).is_none_or(|order| order.is_ge()), format!("at least {bound}")),
        "maximum" => (compare(value, bound).is_none_or(|order| order.is_le()), format!("at most {bound}")),
        "exclusiveMinimum" => {
            (compare(value, bound).is_none_or(|order| order.is_gt()), format!("more than {bound}"))
        }
        "exclusiveMaximum" => {
            (compare(value, bound).is_none_or(|order| order.is_lt()), format!("less than {bound}"))
        }
        "minLength" => {
            let least = bound.as_u64()?;
            (length().is_none_or(|length| length >= least), format!("at least {least} characters long"))
        }
        "maxLength" => {
            let most = bound.as_u64()?;
            (length().is_none_or(|length| length <= most), format!("at most {most} characters long"))
        }
        "pattern" => {
            let pattern = bound.as_str()?;
            // A pattern that does not compile was refused with its dag; it cannot vouch for a value.
            let matches =
                Regex::new(pattern).is_ok_and(|regex| value.as_str().is_none_or(|text| regex.is_match(text)));
            (matches, format!("text that matches {pattern:?}"))
        }
        _ => return None,
    };
    (!fits).then(|| format!("must be {wanted}, not {}", show(value)))
}

fn type_names(value: &Value) -> Vec<Option<&str>> {
    match value {
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        name => vec![name.as_str()],
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        // As in JSON Schema, 2.0 is an integer.
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        _ => false,
    }
}

/// Numbers are the same if they mean the same: 2 and 2.0.
fn same(a: &Value, b: &Value) -> bool {
    a == b || compare(a, b).is_some_and(|order| order.is_eq())
}

/// `None` if one of them is not a number. Whole numbers are compared exactly, beyond what an `f64` holds.
fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

/// A value in an error message: as JSON, and not longer than a line.
fn show(value: &Value) -> impl fmt::Display {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParamSpec;
    use serde_json::json;

    fn schema(value: Value) -> Schema {
        serde_json::from_value(value).unwrap()
    }

    fn dag(params: &[(&str, Option<Value>, Value)]) -> DagSpec {
        let param = |(name, default, keywords): &(&str, Option<Value>, Value)| {
            let spec =
                ParamSpec { default: default.clone(), description: None, schema: schema(keywords.clone()) };
            (name.to_string(), spec)
        };
        DagSpec { params: params.iter().map(param).collect(), ..DagSpec::new("d", vec![]) }
    }

    #[test]
    fn each_keyword_lets_good_values_pass_and_stops_bad_ones() {
        for (keywords, good, bad) in [
            (json!({"type": "string"}), json!(["", "a"]), json!([1, null, true, [], {}])),
            (json!({"type": "integer"}), json!([1, -1, 2.0]), json!([1.5, "1", null])),
            (json!({"type": "number"}), json!([1, 1.5]), json!(["1", true])),
            (json!({"type": ["string", "null"]}), json!(["a", null]), json!([1, {}])),
            (json!({"enum": ["eu", 2]}), json!(["eu", 2, 2.0]), json!(["us", "2"])),
            (json!({"const": 7}), json!([7]), json!([8, "7"])),
            (json!({"minimum": 1, "maximum": 3}), json!([1, 3, 2.5, "text"]), json!([0, 4, 3.01])),
            (json!({"exclusiveMinimum": 1, "exclusiveMaximum": 3}), json!([2]), json!([1, 3])),
            (json!({"minLength": 2, "maxLength": 3}), json!(["äö", "abc"]), json!(["ä", "abcd"])),
            (json!({"pattern": "^[a-z]+$"}), json!(["abc", 5]), json!(["Abc", ""])),
            (json!({"minimum": i64::MAX}), json!([i64::MAX]), json!([i64::MAX - 1])),
        ] {
            let schema = schema(keywords.clone());
            assert_eq!(check_schema(&schema), [], "{keywords}");
            for value in good.as_array().unwrap() {
                assert_eq!(check_value(&schema, value), Vec::<String>::new(), "{keywords} {value}");
            }
            for value in bad.as_array().unwrap() {
                assert!(!check_value(&schema, value).is_empty(), "{keywords} let {value} pass");
            }
        }
    }

    #[test]
    fn a_schema_that_could_not_be_checked_is_refused() {
        for keywords in [
            json!({"type": "str"}),
            json!({"type": []}),
            json!({"enum": []}),
            json!({"minimum": "1"}),
            json!({"minLength": -1}),
            json!({"pattern": "("}),
            json!({"multipleOf": 2}),
        ] {
            assert_eq!(check_schema(&schema(keywords.clone())).len(), 1, "{keywords}");
        }
    }

    #[test]
    fn conf_overrides_defaults_and_may_hold_more() {
        let spec = dag(&[
            ("region", Some(json!("eu")), json!({"enum": ["eu", "us"]})),
            ("n", Some(json!(1)), json!({})),
        ]);
        let values = validate(&spec, &json!({"region": "us", "note": "hi"})).unwrap();
        assert_eq!(Value::Object(values), json!({"n": 1, "region": "us"}));
        assert_eq!(Value::Object(validate(&spec, &Value::Null).unwrap()), json!({"n": 1, "region": "eu"}));
    }

    #[test]
    fn every_problem_is_named() {
        let spec =
            dag(&[("region", Some(json!("eu")), json!({"enum": ["eu", "us"]})), ("day", None, json!({}))]);
        let errors: Vec<_> = validate(&spec, &json!({"region": "mars"}))
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            errors,
            [
                r#"parameter "day" has no default: the trigger must set it in conf"#,
                r#"parameter "region" must be one of "eu", "us", not "mars""#,
            ]
        );
        assert!(validate(&spec, &json!([1])).unwrap_err()[0].to_string().contains("must be an object"));
    }

    #[test]
    fn a_null_default_is_a_default_and_survives_storage() {
        let spec = dag(&[("x", Some(Value::Null), json!({})), ("y", None, json!({}))]);
        let stored: DagSpec = serde_json::from_str(&spec.canonical_json()).unwrap();
        assert_eq!(stored, spec);
    }
}

//! Goal: what a user types becomes exactly the run that was meant.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: TriggerArgs,
}

fn body(arguments: &[&str]) -> Result<String, Failure> {
    let line = Line::try_parse_from(["trigger", "orders"].iter().chain(arguments)).expect("well-formed");
    line.args.body().map(|body| body.to_string())
}

#[test]
fn nothing_given_means_a_run_without_a_logical_date() {
    assert_eq!(body(&[]).unwrap(), r#"{"logical_date":null,"conf":{}}"#);
}

#[test]
fn params_are_json_where_they_read_as_such_and_win_over_conf() {
    let body =
        body(&["--conf", r#"{"a": 1, "b": 2}"#, "-p", "b=three", "-p", "c=[1]", "-p", "d=a=b", "-p", "e="]);
    expect_test::expect![[r#"{"logical_date":null,"conf":{"a":1,"b":"three","c":[1],"d":"a=b","e":""}}"#]]
        .assert_eq(&body.unwrap());
}

#[test]
fn times_without_a_zone_are_utc() {
    let date = |text: &str| moment(text).map(|moment| moment.to_string());
    assert_eq!(date("2026-01-01").unwrap(), "2026-01-01T00:00:00Z");
    assert_eq!(date("2026-01-01T05:00:00").unwrap(), "2026-01-01T05:00:00Z");
    assert_eq!(date("2026-01-01T05:00:00+02:00").unwrap(), "2026-01-01T03:00:00Z");
    assert!(date("tomorrow").is_err());
}

#[test]
fn conf_is_read_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"x": true}"#).unwrap();
    let argument = format!("@{}", file.path().display());
    assert_eq!(
        body(&["--conf", &argument, "--run-id", "r", "--note", "n"]).unwrap(),
        r#"{"logical_date":null,"conf":{"x":true},"dag_run_id":"r","note":"n"}"#
    );
}

#[test]
fn a_conf_that_is_no_object_is_wrong_usage() {
    for conf in ["[1]", "{", "@/no/such/file"] {
        assert!(matches!(body(&["--conf", conf]), Err(Failure::Usage(_))), "{conf}");
    }
}

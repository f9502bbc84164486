//! Goal: the crates depend on each other only along the arrows of the architecture.
//! Method: read `cargo metadata` and hold every normal or build dependency between two crates of the
//! workspace against one table. Dev-dependencies are free: tests may look at everything.

use std::process::Command;

use serde_json::{Value, json};

/// crate → what it may depend on. `clock` is left out where the crate must be pure.
const ALLOWED: [(&str, &[&str]); 32] = [
    ("clock", &[]),
    ("model", &[]),
    ("planner", &["model"]),
    ("placement", &["model"]),
    ("protocol", &[]),
    ("dagfile", &["model"]),
    ("lease", &["clock"]),
    ("lease-etcd", &["lease", "clock"]),
    ("lease-http", &["lease", "clock"]),
    ("lease-conformance", &["lease", "clock"]),
    ("logs", &["model", "clock"]),
    ("tls", &[]),
    ("store", &["model", "lease"]),
    ("store-conformance", &["store", "model", "lease", "lease-conformance", "clock"]),
    ("store-memory", &["store", "model", "lease", "clock"]),
    ("store-sqlite", &["store", "model", "lease", "clock"]),
    ("store-postgres", &["store", "model", "lease", "clock"]),
    ("dispatch", &["model", "store", "clock"]),
    ("agent-proto", &["model"]),
    ("agent-life", &["model", "clock"]),
    ("agent", &["agent-life", "agent-proto", "model", "clock", "logs", "tls"]),
    ("fleet", &["agent-proto", "dispatch", "store", "model", "clock", "logs"]),
    ("outlook", &["model", "placement", "store"]),
    ("scheduler", &["planner", "placement", "outlook", "store", "lease", "dispatch", "model", "clock"]),
    ("api", &["model", "outlook", "store", "lease", "clock", "logs"]),
    ("testkit", &["model", "clock"]),
    ("xtask", &[]),
    (
        "bench",
        &[
            "testkit",
            "clock",
            "lease",
            "lease-etcd",
            "model",
            "store",
            "store-postgres",
            "store-sqlite",
            "planner",
            "agent-proto",
            "dispatch",
            "placement",
            "scheduler",
        ],
    ),
    ("judge", &[]), // a checker does not trust the types of what it checks
    ("chaos", &["testkit", "clock", "judge"]),
    (
        "sim",
        &["agent-life", "scheduler", "dispatch", "store", "store-memory", "lease", "model", "clock", "judge"],
    ),
    ("tenure", ALL),
];

/// The binary wires everything together and is the only one that may know everyone.
const ALL: &[&str] = &["*"];

#[test]
fn crates_depend_on_each_other_only_along_the_arrows() {
    let found = violations(&workspace());
    assert!(
        found.is_empty(),
        "{}\n\nEither the dependency is wrong, or the architecture has changed: then say so in \
         ARCHITECTURE.md and in the table of this test.",
        found.join("\n")
    );
}

#[test]
fn a_dependency_against_the_arrows_is_reported() {
    let metadata = json!({ "packages": [
        package("tenure-planner", json!([
            { "name": "tenure-model", "kind": null, "path": "x" },
            { "name": "tenure-store", "kind": null, "path": "x" },
            { "name": "tenure-testkit", "kind": "dev", "path": "x" },
            { "name": "serde", "kind": null },
        ])),
        package("tenure-model", json!([])),
    ] });
    assert_eq!(violations(&metadata), ["planner must not depend on store"]);
}

#[test]
fn a_crate_without_a_row_in_the_table_is_reported() {
    let metadata = json!({ "packages": [package("tenure-bucket", json!([]))] });
    assert_eq!(violations(&metadata), ["bucket has no row in the table of arrows"]);
}

fn violations(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    packages.iter().flat_map(violations_of).collect()
}

fn violations_of(package: &Value) -> Vec<String> {
    let name = short(package["name"].as_str().expect("a package has a name"));
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        return vec![format!("{name} has no row in the table of arrows")];
    };
    let dependencies = package["dependencies"].as_array().expect("a package lists its dependencies");
    dependencies
        .iter()
        .filter(|dependency| dependency["path"].is_string() && dependency["kind"] != "dev")
        .map(|dependency| short(dependency["name"].as_str().expect("a dependency has a name")))
        .filter(|dependency| *allowed != ALL && !allowed.contains(dependency))
        .map(|dependency| format!("{name} must not depend on {dependency}"))
        .collect()
}

fn short(name: &str) -> &str {
    name.strip_prefix("tenure-").unwrap_or(name)
}

fn package(name: &str, dependencies: Value) -> Value {
    json!({ "name": name, "dependencies": dependencies })
}

fn workspace() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo is there: it runs this test");
    assert!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

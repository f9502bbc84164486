//! Goal: a setting means the same wherever it is written, and a wrong one is explained where it stands.
//! Method: files as text, settings as words; what is said is compared whole.

use std::path::Path;

use expect_test::{Expect, expect};

use tenure_scheduler::Strategy;

use super::knobs::KNOBS;
use super::*;

const DATABASE: &str = "postgres://ada:secret@db/tenure";

fn server() -> Given {
    Given::default().with("database_url", DATABASE)
}

/// A server with this config file.
fn with_file(text: &str) -> Result<Settings, Problems> {
    check::settle(Edition::Server, &server(), file::parse(Path::new("tenure.toml"), text)?)
}

fn check_problems(settled: Result<Settings, Problems>, expected: Expect) {
    let said = settled.map_or_else(|problems| problems.to_string(), |_| "no problem".into());
    expected.assert_eq(&said);
}

fn check_file(text: &str, expected: Expect) {
    check_problems(with_file(text), expected);
}

#[test]
fn the_defaults_are_those_of_the_profile() {
    let lite = Settings::load(Edition::Up, &Given::default()).unwrap();
    assert_eq!((lite.profile, lite.dispatch_workers, lite.dispatch_queue), (Profile::Lite, 1, 1));
    assert_eq!((lite.shards, lite.keep_runs), (1, None));
    let pro = Settings::load(Edition::Server, &server()).unwrap();
    assert_eq!((pro.profile, pro.dispatch_workers, pro.dispatch_queue), (Profile::Pro, 16, 256));
    assert_eq!((pro.shards, pro.shards_asked), (16, false));
    assert_eq!(pro.keep_runs, Some(Duration::from_secs(90 * 86_400)));
    assert_eq!((pro.tick, pro.claim_timeout), (Duration::from_secs(1), Duration::from_secs(60)));
    let thresholds = (pro.heartbeat_threshold, pro.orphan_threshold);
    assert_eq!(thresholds, (Duration::from_secs(90), Duration::from_secs(300)));
    let on_postgres = Settings::load(Edition::Up, &server()).unwrap();
    assert_eq!((on_postgres.profile, on_postgres.shards), (Profile::Pro, 1));
}

#[test]
fn a_file_goes_before_the_profile_and_a_flag_before_the_file() {
    let file =
        file::parse(Path::new("f.toml"), "profile = \"lite\"\ndispatch_queue = 7\ntick = \"2s\"\n").unwrap();
    let settings = check::settle(Edition::Server, &server().with("tick", "3s"), file).unwrap();
    assert_eq!((settings.dispatch_workers, settings.dispatch_queue), (1, 7));
    assert_eq!(settings.tick, Duration::from_secs(3));
    let source = |key: &str| settings.shown.iter().find(|shown| shown.key == key).unwrap().source.to_string();
    assert_eq!(source("dispatch_workers"), "default (lite)");
    assert_eq!(source("dispatch_queue"), "f.toml:2");
    assert_eq!(source("tick"), "--tick");
}

#[test]
fn a_number_asked_for_is_told_from_the_default() {
    assert!(with_file("shards = 16").unwrap().shards_asked);
}

#[test]
fn every_wrong_name_in_a_file_is_told_with_its_line_and_the_nearest_right_one() {
    check_file(
        "tick = \"1s\"\nheartbeat-treshold = \"90s\"\n\nTENURE_SHARDS = 4\nfoo = 1\n[leases]\nduration = \"5s\"\n",
        expect![[r#"
            tenure.toml:2: there is no setting "heartbeat-treshold" (did you mean "heartbeat_threshold"?)
            tenure.toml:4: there is no setting "TENURE_SHARDS" (did you mean "shards"?)
            tenure.toml:5: there is no setting "foo"; those there are: tenure config check
            tenure.toml:6: leases takes one value, in quotes or as a number, and not a table"#]],
    );
    check_file(
        "[scheduler]\ntick = \"1s\"\n",
        expect![
            "tenure.toml:1: there is no section [scheduler]: write the settings side by side, with their full names"
        ],
    );
}

#[test]
fn settings_that_begin_alike_may_stand_in_a_section() {
    let settings = with_file("tick = \"2s\"\n[placement]\nstrategy = \"pack\"\nload = 0\n").unwrap();
    assert_eq!((settings.placement.strategy, settings.placement.weights.load), (Strategy::Pack, 0));
    let shown = settings.shown.iter().find(|shown| shown.key == "placement_load").unwrap();
    assert_eq!((shown.value.as_deref(), shown.source.to_string().as_str()), (Some("0"), "tenure.toml:4"));
    assert_eq!(
        with_file("").unwrap().placement,
        Policy::default(),
        "the table has the defaults of the policy"
    );
    check_file(
        "placement_load = 5\n[placement]\nload = 7\nlaod = 7\nspread = 1001\nstrategy = \"best\"\n",
        expect![[r#"
            tenure.toml:3: placement_load is set twice: also at tenure.toml:1
            tenure.toml:4: there is no setting "placement_laod" (did you mean "placement_load"?)"#]],
    );
    check_file(
        "[placement]\nspread = 1001\nstrategy = \"best\"\npreemption = \"yes\"\n",
        expect![[r#"
            tenure.toml:3: placement_strategy = "best" is neither spread nor pack
            tenure.toml:2: placement_spread = "1001" is not a whole number from 0 to 1000
            tenure.toml:4: placement_preemption = "yes" is neither on nor off"#]],
    );
}

#[test]
fn a_file_that_is_no_toml_is_told_with_its_line() {
    check_file("tick = \"1s\"\nshards = = 4\n", expect!["tenure.toml:2: extra `=`, expected nothing"]);
    check_file("tick = \"1s\"\ntick = \"2s\"\n", expect!["tenure.toml:2: duplicate key"]);
}

#[test]
fn values_that_cannot_be_read_are_all_told_with_what_they_should_look_like() {
    check_file(
        "tick = 5\nclaim_timeout = \"0s\"\nshards = 0\ndispatch_workers = \"many\"\nlisten = \"8080\"\n\
         advertise = \"host:8080\"\nleases = \"redis://x\"\non_loss = \"panic\"\nkeep_runs = \"0s\"\n\
         keep_audit = \"never\"\nepochs = \"random\"\nprofile = \"huge\"\n",
        expect![[r#"
            tenure.toml:12: profile = "huge" is neither lite nor pro
            tenure.toml:5: listen = "8080" is no address with a port, like 127.0.0.1:8080
            tenure.toml:6: advertise = "host:8080" is no address that others could use, like http://10.0.0.7:8080
            tenure.toml:11: epochs = "random" is neither count nor clock
            tenure.toml:3: shards = "0" is not a whole number from 1 to 1024
            tenure.toml:7: leases = "redis://x" is neither postgres (the state's own database) nor etcd://host:port[,host:port][/prefix]
            tenure.toml:8: on_loss = "panic" is neither demote nor exit
            tenure.toml:1: tick = "5" is no duration (write it like 500ms, 30s, 10m, 1h30m or 2d)
            tenure.toml:2: claim_timeout = "0s" must be longer than nothing
            tenure.toml:4: dispatch_workers = "many" is not a whole number from 1 to 1000000
            tenure.toml:9: keep_runs = "0s" would delete everything at once; to keep everything, write off
            tenure.toml:10: keep_audit = "never" is no duration (write it like 500ms, 30s, 10m, 1h30m or 2d) and is not "off""#]],
    );
}

#[test]
fn settings_that_do_not_go_together_are_told_with_the_reason() {
    check_file(
        "heartbeat_threshold = \"15s\"\n",
        expect![[
            r#"tenure.toml:1: heartbeat_threshold = "15s" must be longer than 15s: agents speak every 5s, one heartbeat may be lost and one late, and the tasks of an agent that is only slow must not be given up"#
        ]],
    );
    check_file(
        "tick = \"2m\"\n",
        expect![[
            r#"tenure.toml:1: tick = "2m" does not go with claim_timeout = "1m" (default (pro)): a task that nobody claims is found by a tick, so claim_timeout cannot be shorter than tick"#
        ]],
    );
    check_file(
        "claim_timeout = \"500ms\"\n",
        expect![[
            r#"tenure.toml:1: claim_timeout = "500ms" does not go with tick = "1s" (default (pro)): a task that nobody claims is found by a tick, so claim_timeout cannot be shorter than tick"#
        ]],
    );
    check_file(
        "orphan_threshold = \"10s\"\ntick = \"30s\"\n",
        expect![[
            r#"tenure.toml:1: orphan_threshold = "10s" does not go with tick = "30s" (tenure.toml:2): orphaned runs are found by a tick, so orphan_threshold cannot be shorter than tick"#
        ]],
    );
    check_file("tick = \"5ms\"\n", expect![[r#"tenure.toml:1: tick = "5ms" is shorter than 10ms"#]]);
}

#[test]
fn a_statement_is_not_waited_for_longer_than_the_store_waits() {
    check_file(
        "statement_timeout = \"31s\"\n",
        expect![[
            r#"tenure.toml:1: statement_timeout = "31s" is longer than 30s, and no answer is waited for longer"#
        ]],
    );
}

#[test]
fn a_server_without_a_shared_database_is_sent_to_tenure_up() {
    check_problems(
        Settings::load(Edition::Server, &Given::default()),
        expect![
            "a server needs a database that its replicas share: name one with --database-url postgres://user:password@host/database (on one machine, without a database server: tenure up)"
        ],
    );
    check_problems(
        Settings::load(Edition::Server, &Given::default().with("database_url", "sqlite:x.db")),
        expect![[
            r#"--database-url: database_url = "***" is no Postgres database (postgres://user:password@host/database); on SQLite there is only one process: tenure up, without --database-url"#
        ]],
    );
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let given = server().with_config(Path::new("nowhere/tenure.toml"));
    let said = Settings::load(Edition::Server, &given).unwrap_err().to_string();
    assert!(said.contains("nowhere/tenure.toml cannot be read"), "{said}");
}

#[test]
fn passwords_are_not_shown() {
    let shown = |url: &str| {
        let settings = Settings::load(Edition::Server, &Given::default().with("database_url", url)).unwrap();
        settings.shown.into_iter().find(|shown| shown.key == "database_url").unwrap().value.unwrap()
    };
    assert_eq!(shown(DATABASE), "postgres://ada:***@db/tenure");
    assert_eq!(shown("postgres://ada:p@ss@db/x"), "postgres://ada:***@db/x");
    assert_eq!(shown("postgres://db/x?password=secret"), "postgres://db/x?***");
    assert_eq!(shown("postgres://ada@db:1/x?host=/run"), "postgres://ada@db:1/x?host=/run");
}

#[test]
fn signals_have_a_section_of_their_own_and_a_webhook_whose_secrets_are_not_shown() {
    let settings = with_file(
        "[signals]\nwebhook = \"https://ada:pw@scaler:8443/hook/T0P?key=s3cret\"\nshortage_after = \"5m\"\n\
         keep_nodes = 0\n",
    )
    .unwrap();
    assert_eq!(settings.webhook.as_deref(), Some("https://ada:pw@scaler:8443/hook/T0P?key=s3cret"));
    let rules = SignalRules { shortage_after: Duration::from_secs(300), keep_nodes: 0, ..Default::default() };
    assert_eq!(settings.signals, rules, "the table has the defaults of the rules");
    let shown = settings.shown.into_iter().find(|shown| shown.key == "signals_webhook").unwrap().value;
    assert_eq!(shown.as_deref(), Some("https://scaler:8443/***"));
    assert_eq!(without_secrets("http://scaler/"), "http://scaler");
    assert_eq!(without_secrets("http://ada@scaler?key=1"), "http://scaler/***");
    check_file(
        "[signals]\nwebhook = \"scaler/s3cret\"\nkeep_nodes = -1\ninterval = \"0s\"\nidle_after = \"soon\"\n",
        expect![[r#"
            tenure.toml:2: signals_webhook = "***" is no address that something could be sent to, like https://scaler.internal/tenure
            tenure.toml:5: signals_idle_after = "soon" is no duration (write it like 500ms, 30s, 10m, 1h30m or 2d)
            tenure.toml:3: signals_keep_nodes = "-1" is not a whole number from 0 to 1000000
            tenure.toml:4: signals_interval = "0s" must be longer than nothing"#]],
    );
    check_file(
        "signals_webhook = \"https:///s3cret\"",
        expect![[
            r#"tenure.toml:1: signals_webhook = "https:///***" is no address that something could be sent to, like https://scaler.internal/tenure"#
        ]],
    );
}

#[test]
fn a_certificate_comes_with_its_key_and_is_reached_by_https() {
    let both = server().with("tls_cert", "server.crt").with("tls_key", "server.key");
    let settings = Settings::load(Edition::Server, &both).unwrap();
    let files = TlsFiles { certificate: "server.crt".into(), key: "server.key".into() };
    assert_eq!(settings.tls, Some(files));
    check_problems(
        Settings::load(Edition::Server, &server().with("tls_cert", "server.crt")),
        expect![[r#"--tls-cert: tls_cert = "server.crt" needs its private key: name it with --tls-key"#]],
    );
    check_problems(
        Settings::load(Edition::Server, &server().with("tls_key", "server.key")),
        expect![[r#"--tls-key: tls_key = "server.key" needs its certificate: name it with --tls-cert"#]],
    );
    check_problems(
        Settings::load(Edition::Server, &both.with("advertise", "http://10.0.0.7:8080")),
        expect![[
            r#"--advertise: advertise = "http://10.0.0.7:8080" does not go with tls_cert = "server.crt" (--tls-cert): what is served with a certificate is reached at https://, and at no other address"#
        ]],
    );
}

#[test]
fn every_default_can_be_read_in_every_edition_and_profile() {
    for edition in [Edition::Up, Edition::Server] {
        for profile in ["lite", "pro"] {
            let settled = Settings::load(edition, &server().with("profile", profile));
            assert!(settled.is_ok(), "{edition:?} {profile}: {settled:?}");
        }
    }
}

/// The repository's own papers.
fn paper(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_example_file_names_every_setting_and_the_default_of_what_is_commented_out() {
    let text = paper("deploy/tenure.toml");
    let commented =
        |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#'])).map(str::to_owned);
    let whole: String =
        text.lines().map(|line| commented(line).unwrap_or_else(|| line.into()) + "\n").collect();
    let parsed = |text: &str| file::parse(Path::new("deploy/tenure.toml"), text).unwrap();
    let defaults: String = text.lines().filter_map(commented).map(|line| line + "\n").collect();
    for (key, value, _) in parsed(&defaults) {
        let knob = knobs::Knob::find(key).unwrap();
        assert_eq!(Some(value.as_str()), knob.default.of(Edition::Server, Profile::Pro), "{key}");
    }
    let entries = parsed(&whole);
    let missing = KNOBS.iter().find(|knob| !entries.iter().any(|(key, ..)| *key == knob.key));
    assert!(missing.is_none(), "{missing:?}");
    assert!(check::settle(Edition::Server, &Given::default(), entries).is_ok());
}

#[test]
fn the_operators_page_names_every_setting_with_its_defaults() {
    let page = paper("docs/cluster.md");
    for knob in KNOBS {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", knob.key)));
        let row = row.unwrap_or_else(|| panic!("docs/cluster.md has no row for {}", knob.key));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for (cell, profile) in [(2, Profile::Lite), (3, Profile::Pro)] {
            let default = knob.default.of(Edition::Server, profile).unwrap_or("–");
            assert_eq!(cells[cell].trim_matches('`'), default, "{row}");
        }
    }
}

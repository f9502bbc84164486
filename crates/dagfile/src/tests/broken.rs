//! Broken files and exactly what their authors read.

use expect_test::{Expect, expect};

use super::files;
use crate::{Attached, parse};

fn check(text: &str, expected: Expect) {
    let errors = parse("etl.yaml", text, &files()).expect_err(text);
    let told: String = errors
        .list
        .iter()
        .map(|error| {
            format!("{}:{}:{} [{}] {}\n", error.file, error.line, error.column, error.field, error.message)
        })
        .collect();
    expected.assert_eq(&told);
}

/// A dag whose only task is `t` with these lines.
fn check_task(lines: &str, expected: Expect) {
    let indented = lines.replace('\n', "\n    ");
    check(&format!("id: d\ntasks:\n  t:\n    {indented}\n"), expected);
}

#[test]
fn a_diagnostic_reads_like_a_compiler_error() {
    let text =
        "id: etl\ntasks:\n  transform: { empty: true }\n  load:\n    empty: true\n    needs: [transfrom]\n";
    let errors = parse("dags/etl.yaml", text, &Attached::default()).unwrap_err();
    expect![[
        r#"dags/etl.yaml:6: task "load" needs "transfrom", which does not exist (did you mean "transform"?)"#
    ]]
    .assert_eq(&errors.to_string());
    expect![[r#"{"list":[{"file":"dags/etl.yaml","line":6,"column":13,"field":"tasks.load.needs[0]","message":"task \"load\" needs \"transfrom\", which does not exist (did you mean \"transform\"?)"}],"truncated":false}"#]].assert_eq(&serde_json::to_string(&errors).unwrap());
}

#[test]
fn an_empty_file() {
    check(
        "",
        expect![[r#"
        etl.yaml:1:1 [] the file is empty; a dag needs at least an id and a task
    "#]],
    );
}

#[test]
fn a_file_that_is_only_a_comment() {
    check(
        "# nothing yet\n",
        expect![[r#"
        etl.yaml:1:1 [] the file is empty; a dag needs at least an id and a task
    "#]],
    );
}

#[test]
fn text_that_is_not_yaml() {
    check(
        "id: d\ntasks: {\n  a: [\n",
        expect![[r#"
        etl.yaml:4:1 [] this is not YAML: while parsing a node, did not find expected node content
    "#]],
    );
}

#[test]
fn a_tab_for_indentation() {
    check(
        "id: d\ntasks:\n\ta: { empty: true }\n",
        expect![[r#"
        etl.yaml:3:2 [] this is not YAML: tabs disallowed within this context (block indentation)
    "#]],
    );
}

#[test]
fn a_list_instead_of_a_dag() {
    check(
        "- id: d\n",
        expect![[r#"
        etl.yaml:1:1 [] the dag must be a map of keys and values, not a list
    "#]],
    );
}

#[test]
fn two_documents() {
    check(
        "id: d\ntasks: { a: { empty: true } }\n---\nid: e\n",
        expect![[r#"
        etl.yaml:3:1 [] a second document begins here; a file holds one dag
    "#]],
    );
}

#[test]
fn an_unknown_tag() {
    check(
        "id: !secret d\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:1:5 [] the tag !secret is not supported
    "#]],
    );
}

#[test]
fn nothing_required_is_there() {
    check(
        "description: a dag\n",
        expect![[r#"
        etl.yaml:1:1 [id] the dag has no "id"; add it like id: orders
        etl.yaml:1:1 [tasks] the dag has no "tasks"; add it like tasks: { only: { empty: true } }
    "#]],
    );
}

#[test]
fn unknown_keys_of_the_dag() {
    check(
        "id: d\nschedul: 15m\nfoo: 1\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:1 [schedul] the dag has an unknown key "schedul" (did you mean "schedule"?)
        etl.yaml:3:1 [foo] the dag has an unknown key "foo"
    "#]],
    );
}

#[test]
fn a_key_twice() {
    check(
        "id: d\nid: e\ntasks:\n  a: { empty: true }\n  a: { bash: x }\n",
        expect![[r#"
        etl.yaml:2:1 [] key "id" appears twice (first on line 1)
        etl.yaml:5:3 [] key "a" appears twice (first on line 4)
    "#]],
    );
}

#[test]
fn a_key_that_is_no_name() {
    check(
        "id: d\n[a, b]: c\n",
        expect![[r#"
        etl.yaml:2:1 [] a key must be a name, not a list
    "#]],
    );
}

#[test]
fn ids_with_bad_characters() {
    check(
        "id: my dag\ntasks:\n  a/b: { empty: true }\n  ..: { empty: true }\n",
        expect![[r#"
        etl.yaml:1:5 [id] the dag id "my dag" contains ' ' (letters, digits, '_', '.' and '-' are allowed)
        etl.yaml:3:3 [tasks.a/b] the task id "a/b" contains '/' (letters, digits, '_', '.' and '-' are allowed)
        etl.yaml:4:3 [tasks...] the task id ".." is made of dots alone
    "#]],
    );
}

#[test]
fn an_id_that_is_too_long() {
    check(
        &format!("id: {}\ntasks: {{ a: {{ empty: true }} }}\n", "x".repeat(251)),
        expect![[r#"
        etl.yaml:1:5 [id] the dag id "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…" is longer than 250 characters
    "#]],
    );
}

#[test]
fn no_tasks() {
    check(
        "id: d\ntasks: {}\n",
        expect![[r#"
        etl.yaml:2:8 [tasks] the dag has no tasks
    "#]],
    );
}

#[test]
fn tasks_as_a_list() {
    check(
        "id: d\ntasks:\n  - id: a\n",
        expect![[r#"
        etl.yaml:3:3 [tasks] tasks must be a map of names and values, not a list
    "#]],
    );
}

#[test]
fn a_bad_cron_expression() {
    check(
        "id: d\nschedule: 0 25 * * *\ntasks: { a: { empty: true } }\n",
        expect![[r#"
            etl.yaml:2:11 [schedule] "0 25 * * *" is not a cron expression: the hour field "25": number out of bounds
        "#]],
    );
}

#[test]
fn too_few_cron_fields() {
    check(
        "id: d\nschedule: 5 4\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:11 [schedule] "5 4" is not a cron expression: there are 2 fields, not the five of minute, hour, day, month and weekday
    "#]],
    );
}

#[test]
fn an_unknown_preset() {
    check(
        "id: d\nschedule: \"@dayly\"\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:11 [schedule] "@dayly" is not a cron expression: there is no such preset (known: @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually)
    "#]],
    );
}

#[test]
fn a_date_that_never_comes() {
    check(
        "id: d\nschedule: 0 0 30 2 *\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:11 [schedule] the schedule "0 0 30 2 *" names a date that never comes
    "#]],
    );
}

#[test]
fn an_interval_of_nothing() {
    check(
        "id: d\nschedule: { every: 0s }\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:11 [schedule] an interval of 0s is too short (the shortest is 1s)
    "#]],
    );
}

#[test]
fn an_interval_without_a_unit() {
    check(
        "id: d\nschedule: { every: 15 }\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:20 [schedule.every] schedule.every must be a duration like 30s, 10m or 1h30m, not 15
    "#]],
    );
}

#[test]
fn an_unknown_zone() {
    check(
        "id: d\ntimezone: Europe/Berlni\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:11 [timezone] "Europe/Berlni" is not a known time zone (did you mean "Europe/Berlin"?)
    "#]],
    );
}

#[test]
fn a_zone_like_no_other() {
    check(
        "id: d\ntimezone: Mars/Olympus Mons\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:11 [timezone] "Mars/Olympus Mons" is not a known time zone (use an IANA name such as Europe/Berlin)
    "#]],
    );
}

#[test]
fn bad_dates() {
    check(
        "id: d\nstart_date: 2026-02-30\nend_date: soon\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:13 [start_date] start_date must be a date like 2026-01-31, 2026-01-31T05:00:00 or 2026-01-31T05:00:00+01:00, not "2026-02-30"
        etl.yaml:3:11 [end_date] end_date must be a date like 2026-01-31, 2026-01-31T05:00:00 or 2026-01-31T05:00:00+01:00, not "soon"
    "#]],
    );
}

#[test]
fn dates_in_the_wrong_order() {
    check(
        "id: d\nstart_date: 2026-02-02\nend_date: 2026-02-01\ntasks: { a: { empty: true } }\n",
        expect![[r#"
            etl.yaml:3:11 [end_date] end_date lies before start_date: the dag would never run
        "#]],
    );
}

#[test]
fn absurd_limits_of_a_dag() {
    check(
        "id: d\nmax_active_runs: 0\nmax_active_tasks: -1\nrun_timeout: 0s\ncatchup: maybe\ntasks: { a: { empty: true } }\n",
        expect![[r#"
            etl.yaml:2:18 [max_active_runs] max_active_runs must be a whole number from 1 to 100000, not 0
            etl.yaml:3:19 [max_active_tasks] max_active_tasks must be a whole number from 1 to 100000, not -1
            etl.yaml:4:14 [run_timeout] run_timeout must be longer than nothing, not "0s"
            etl.yaml:5:10 [catchup] catchup must be true or false, not "maybe"
        "#]],
    );
}

#[test]
fn defaults_that_belong_to_a_task() {
    check(
        "id: d\ndefaults: { bash: x }\ntasks: { a: { empty: true } }\n",
        expect![[r#"
        etl.yaml:2:13 [defaults.bash] defaults cannot hold "bash", which belongs to a single task
    "#]],
    );
}

#[test]
fn a_mistake_in_defaults_is_told_once() {
    check(
        "id: d\ndefaults: { retries: many }\ntasks: { a: { empty: true }, b: { empty: true } }\n",
        expect![[r#"
            etl.yaml:2:22 [defaults.retries] defaults.retries must be a whole number from 0 to 1000, not "many"
        "#]],
    );
}

#[test]
fn parameters_with_bad_schemas() {
    check(
        "id: d\nparams:\n  a: { type: text }\n  b: { type: integer, minimun: 1 }\n  c: { pattern: \"(\" }\n  d: { some: { object: 1 } }\ntasks: { a: { empty: true } }\n",
        expect![[r#"
            etl.yaml:3:14 [params.a.type] params.a.type must be one of string, number, integer, boolean, object, array, null, or a list of those, not "text"
            etl.yaml:4:23 [params.b.minimun] parameter "b" has an unknown key "minimun" (did you mean "minimum"?)
            etl.yaml:5:17 [params.c.pattern] params.c.pattern is not a regular expression: unclosed group
            etl.yaml:6:8 [params.d.some] parameter "d" has an unknown key "some" (an object as default goes under the key default)
        "#]],
    );
}

#[test]
fn defaults_that_do_not_fit_their_schema() {
    check(
        "id: d\nparams:\n  region: { enum: [eu, us], default: mars }\n  n: { type: integer, maximum: 5, default: 7.5 }\n  x: .nan\ntasks: { a: { empty: true } }\n",
        expect![[r#"
            etl.yaml:3:38 [params.region.default] the default of parameter "region" must be one of "eu", "us", not "mars"
            etl.yaml:4:44 [params.n.default] the default of parameter "n" must be at most 5, not 7.5
            etl.yaml:4:44 [params.n.default] the default of parameter "n" must be of type integer, not 7.5
            etl.yaml:5:6 [params.x] .nan is not a number that JSON has
        "#]],
    );
}

#[test]
fn a_task_that_does_nothing() {
    check_task(
        "retries: 1",
        expect![[r#"
        etl.yaml:3:3 [tasks.t] task "t" has nothing to do: give it exactly one of bash, exec, python, http, empty
    "#]],
    );
}

#[test]
fn a_task_without_a_body() {
    check(
        "id: d\ntasks:\n  t:\n",
        expect![[r#"
        etl.yaml:3:4 [tasks.t] task "t" must be a map of keys and values, not nothing
    "#]],
    );
}

#[test]
fn a_task_that_does_two_things() {
    check_task(
        "bash: echo\nexec: [echo]",
        expect![[r#"
        etl.yaml:5:11 [tasks.t] task "t" has bash and exec; give it exactly one of bash, exec, python, http, empty
    "#]],
    );
}

#[test]
fn an_unknown_key_of_a_task() {
    check_task(
        "bash: echo\nretires: 3",
        expect![[r#"
        etl.yaml:5:5 [tasks.t.retires] task "t" has an unknown key "retires" (did you mean "retries"?)
    "#]],
    );
}

#[test]
fn absurd_numbers() {
    check_task(
        "empty: true\nretries: -1\npriority: 10000000\npool_slots: 1.5\nmax_active_per_dag: 0\nretry_backoff: 0.5",
        expect![[r#"
            etl.yaml:5:14 [tasks.t.retries] tasks.t.retries must be a whole number from 0 to 1000, not -1
            etl.yaml:6:15 [tasks.t.priority] tasks.t.priority must be a whole number from -100000 to 100000, not 10000000
            etl.yaml:7:17 [tasks.t.pool_slots] tasks.t.pool_slots must be a whole number from 1 to 10000, not 1.5
            etl.yaml:8:25 [tasks.t.max_active_per_dag] tasks.t.max_active_per_dag must be a whole number from 1 to 100000, not 0
            etl.yaml:9:20 [tasks.t.retry_backoff] tasks.t.retry_backoff must be true, false or a number above 1 and up to 100, not 0.5
        "#]],
    );
}

#[test]
fn durations_without_units() {
    check_task(
        "empty: true\ntimeout: 30\nretry_delay: 5 minutes\ngrace: -1s\nmax_retry_delay: 9999d",
        expect![[r#"
            etl.yaml:5:14 [tasks.t.timeout] tasks.t.timeout must be a duration like 30s, 10m or 1h30m, not 30
            etl.yaml:6:18 [tasks.t.retry_delay] tasks.t.retry_delay must be a duration like 30s, 10m or 1h30m, not "5 minutes"
            etl.yaml:7:12 [tasks.t.grace] tasks.t.grace must be a duration like 30s, 10m or 1h30m, not "-1s"
            etl.yaml:8:22 [tasks.t.max_retry_delay] tasks.t.max_retry_delay must be a duration of at most 366d, not "9999d"
        "#]],
    );
}

#[test]
fn an_unknown_trigger_rule() {
    check_task(
        "empty: true\ntrigger_rule: all_sucess\nweight_rule: heavy",
        expect![[r#"
        etl.yaml:5:19 [tasks.t.trigger_rule] tasks.t.trigger_rule must be one of all_success, all_failed, all_done, one_success, one_failed, one_done, none_failed, none_failed_min_one_success, none_skipped, all_skipped, all_done_min_one_success, all_done_setup_success, always, not "all_sucess" (did you mean "all_success"?)
        etl.yaml:6:18 [tasks.t.weight_rule] tasks.t.weight_rule must be one of downstream, upstream, absolute, not "heavy"
    "#]],
    );
}

#[test]
fn bad_resources() {
    check_task(
        "empty: true\nresources: { cpu: -1, memory: 512Megs, gpu: many, tasks: 1 }",
        expect![[r#"
            etl.yaml:5:23 [tasks.t.resources.cpu] tasks.t.resources.cpu must be a number or an amount like 1m, not -1
            etl.yaml:5:35 [tasks.t.resources.memory] tasks.t.resources.memory must be a number or an amount like 1Ki, 1Mi, 1Gi, 1Ti, 1k, 1M, 1G, 1T, not "512Megs"
            etl.yaml:5:49 [tasks.t.resources.gpu] tasks.t.resources.gpu must be a number that is not negative, not "many"
            etl.yaml:5:55 [tasks.t.resources.tasks] tasks.t.resources.tasks cannot be set: every task takes one of them
        "#]],
    );
}

#[test]
fn more_memory_than_there_is() {
    check_task(
        "empty: true\nresources: { memory: 5000Ti }",
        expect![[r#"
        etl.yaml:5:26 [tasks.t.resources.memory] tasks.t.resources.memory must be an amount that some machine has, not "5000Ti"
    "#]],
    );
}

#[test]
fn bad_variables() {
    check_task(
        "empty: true\nenv: { A-B: 1, 1A: 2, TENURE_X: 3, OK: [1], S: { secrt: x } }",
        expect![[r#"
            etl.yaml:5:12 [tasks.t.env.A-B] "A-B" is not the name of an environment variable (letters, digits and '_', not beginning with a digit)
            etl.yaml:5:20 [tasks.t.env.1A] "1A" is not the name of an environment variable (letters, digits and '_', not beginning with a digit)
            etl.yaml:5:27 [tasks.t.env.TENURE_X] "TENURE_X" is reserved: Tenure sets the variables that begin with TENURE_
            etl.yaml:5:44 [tasks.t.env.OK] tasks.t.env.OK must be text, not a list
            etl.yaml:5:52 [tasks.t.env.S.secret] variable "S" has no "secret"; add it like secret: api
            etl.yaml:5:54 [tasks.t.env.S.secrt] variable "S" has an unknown key "secrt" (did you mean "secret"?)
        "#]],
    );
}

#[test]
fn empty_that_is_false() {
    check_task(
        "empty: false",
        expect![[r#"
        etl.yaml:4:12 [tasks.t.empty] tasks.t.empty must be true, not false
    "#]],
    );
}

#[test]
fn an_empty_script() {
    check_task(
        r#"bash: "  ""#,
        expect![[r#"
        etl.yaml:4:11 [tasks.t.bash] tasks.t.bash is empty (a task that does nothing is written as empty: true)
    "#]],
    );
}

#[test]
fn exec_as_text() {
    check_task(
        "exec: echo hello",
        expect![[r#"
        etl.yaml:4:11 [tasks.t.exec] tasks.t.exec must be a list of a program and its arguments, not "echo hello" (a command line goes under bash)
    "#]],
    );
}

#[test]
fn exec_without_a_program() {
    check_task(
        "exec: []",
        expect![[r#"
        etl.yaml:4:11 [tasks.t.exec] tasks.t.exec names no program
    "#]],
    );
}

#[test]
fn a_program_file_that_is_not_there() {
    check_task(
        "exec: [./laod, x]",
        expect![[r#"
            etl.yaml:4:12 [tasks.t.exec[0]] tasks.t.exec[0] names the file "./laod": there is no such file beside the dag file
        "#]],
    );
}

#[test]
fn a_python_file_that_is_not_there() {
    check_task(
        "python: transfrom.py",
        expect![[r#"
            etl.yaml:4:13 [tasks.t.python] tasks.t.python names the file "transfrom.py": there is no such file beside the dag file
        "#]],
    );
}

#[test]
fn python_with_file_and_code() {
    check_task(
        "python: { file: transform.py, code: pass }",
        expect![[r#"
        etl.yaml:4:13 [tasks.t.python] tasks.t.python must have either a file or code
    "#]],
    );
}

#[test]
fn a_bad_request() {
    check_task(
        "http: { url: example.org, method: FETCH }",
        expect![[r#"
            etl.yaml:4:18 [tasks.t.http.url] tasks.t.http.url must begin with http:// or https://, not "example.org"
            etl.yaml:4:39 [tasks.t.http.method] tasks.t.http.method must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, not "FETCH" (did you mean "PATCH"?)
        "#]],
    );
}

#[test]
fn another_bad_request() {
    check_task(
        r#"http: { url: https://example.org, method: FETCH, expect: [99], headers: { "a b": c } }"#,
        expect![[r#"
            etl.yaml:4:47 [tasks.t.http.method] tasks.t.http.method must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, not "FETCH" (did you mean "PATCH"?)
            etl.yaml:4:63 [tasks.t.http.expect[0]] tasks.t.http.expect[0] must be a whole number from 100 to 599, not 99
            etl.yaml:4:79 [tasks.t.http.headers.a b] "a b" is not the name of a header
        "#]],
    );
}

#[test]
fn a_template_that_is_not_closed() {
    check_task(
        "bash: echo {{ ds }",
        expect![[r#"
        etl.yaml:4:11 [tasks.t.bash] tasks.t.bash is not a valid template: unexpected `}`, expected end of variable block
    "#]],
    );
}

#[test]
fn a_template_error_in_the_third_line_of_a_script() {
    check_task(
        "bash: |\n  set -e\n  echo fine\n  echo {% iff x %}\n  echo fine",
        expect![[r#"
            etl.yaml:7:1 [tasks.t.bash] tasks.t.bash is not a valid template: unknown statement iff
        "#]],
    );
}

#[test]
fn a_length_in_bash_that_looks_like_a_comment() {
    check_task(
        "bash: |\n  name=x\n  echo ${#name}",
        expect![[r#"
            etl.yaml:6:1 [tasks.t.bash] tasks.t.bash is not a valid template: unexpected end of comment (write "${#" as "${{ '{#' }}")
        "#]],
    );
}

#[test]
fn a_template_error_in_an_argument() {
    check_task(
        r#"exec: [echo, "{{ ds | }}"]"#,
        expect![[r#"
        etl.yaml:4:18 [tasks.t.exec[1]] tasks.t.exec[1] is not a valid template: unexpected end of variable block, expected identifier
    "#]],
    );
}

#[test]
fn a_nul_in_an_argument() {
    check_task(
        "exec: [echo, \"a\\0b\"]",
        expect![[r#"
        etl.yaml:4:18 [tasks.t.exec[1]] tasks.t.exec[1] contains a NUL character, which no program can be given
    "#]],
    );
}

#[test]
fn a_task_that_needs_itself_or_something_twice() {
    check(
        "id: d\ntasks:\n  a: { empty: true, needs: a }\n  b: { empty: true, needs: [a, a] }\n",
        expect![[r#"
            etl.yaml:3:28 [tasks.a.needs[0]] task "a" needs itself
            etl.yaml:4:32 [tasks.b.needs[1]] task "b" needs "a" twice
        "#]],
    );
}

#[test]
fn a_cycle() {
    check(
        "id: d\ntasks:\n  start: { empty: true }\n  a: { empty: true, needs: [start, c] }\n  b: { empty: true, needs: a }\n  c: { empty: true, needs: b }\n",
        expect![[r#"
            etl.yaml:4:36 [tasks.a.needs[1]] tasks wait for each other in a cycle: a → c → b → a
        "#]],
    );
}

#[test]
fn several_mistakes_at_once() {
    check(
        "id: d\nschedule: 61 * * * *\ntasks:\n  a: { bash: echo, retries: x }\n  b: { needs: [aa], bash: \"{{\" }\n",
        expect![[r#"
            etl.yaml:2:11 [schedule] "61 * * * *" is not a cron expression: the minute field "61": number out of bounds
            etl.yaml:4:29 [tasks.a.retries] tasks.a.retries must be a whole number from 0 to 1000, not "x"
            etl.yaml:5:16 [tasks.b.needs[0]] task "b" needs "aa", which does not exist (did you mean "a"?)
            etl.yaml:5:27 [tasks.b.bash] tasks.b.bash is not a valid template: unexpected end of input, expected expression
        "#]],
    );
}

#[test]
fn wishes_about_nodes_that_mean_nothing() {
    check_task(
        "empty: true\ntolerations: [\"g pu\", gpu=]\nqueue: a,b\nrun_as: a b\non_disconnect: stpo",
        expect![[r#"
            etl.yaml:5:19 [tasks.t.tolerations[0]] tasks.t.tolerations[0] must be key or key=value, without spaces, commas and quotes, not "g pu"
            etl.yaml:5:27 [tasks.t.tolerations[1]] tasks.t.tolerations[1] must be key or key=value, without spaces, commas and quotes, not "gpu="
            etl.yaml:6:12 [tasks.t.queue] tasks.t.queue must be the name of one queue, without spaces and commas, not "a,b"
            etl.yaml:7:13 [tasks.t.run_as] tasks.t.run_as must be the name of a user, not "a b"
            etl.yaml:8:20 [tasks.t.on_disconnect] tasks.t.on_disconnect must be one of continue, stop, not "stpo" (did you mean "stop"?)
        "#]],
    );
    check_task(
        "empty: true\naffinity:\n  prefer:\n    - { label: ssd }\n    - { label: disk=ssd, weight: 0 }\n    - { weight: 3 }\n  spread: zone=a",
        expect![[r#"
            etl.yaml:7:20 [tasks.t.affinity.prefer[0].label] tasks.t.affinity.prefer[0].label must be a label with its value, like disk=ssd, not "ssd"
            etl.yaml:8:38 [tasks.t.affinity.prefer[1].weight] tasks.t.affinity.prefer[1].weight must be a whole number from 1 to 100, not 0
            etl.yaml:9:11 [tasks.t.affinity.prefer[2].label] a preference has no "label"; add it like label: disk=ssd
            etl.yaml:10:15 [tasks.t.affinity.spread] tasks.t.affinity.spread must be the name of a label, like zone, without a value, not "zone=a"
        "#]],
    );
    check_task(
        "empty: true\naffinity: { prefer: disk=ssd, spred: zone }",
        expect![[r#"
            etl.yaml:5:25 [tasks.t.affinity.prefer] tasks.t.affinity.prefer must be a list, not "disk=ssd"
            etl.yaml:5:35 [tasks.t.affinity.spred] affinity has an unknown key "spred" (did you mean "spread"?)
        "#]],
    );
}

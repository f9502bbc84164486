//! Goal: a command finds the server of its machine, never a dead one, and is told where was looked.
//! Method: each test has its own folders; this test process plays the live server.

use super::*;

struct World {
    root: tempfile::TempDir,
    places: Places,
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    let places = Places {
        data_folder: root.path().join("cwd/tenure-data"),
        user_folder: Some(root.path().join("run/tenure")),
    };
    World { root, places }
}

impl World {
    /// A server elsewhere on the machine, with a token file.
    fn server(&self, name: &str, url: &str) -> Published {
        let data = self.root.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join(TOKEN_FILE), format!("token-of-{name}\n")).unwrap();
        publish_in(&self.places, &data, url, &data.join(TOKEN_FILE)).unwrap()
    }

    fn found(&self) -> Result<(String, Option<String>), String> {
        let root = self.root.path().display().to_string();
        find_in(&self.places)
            .map(|endpoint| (endpoint.url, endpoint.token))
            .map_err(|error| error.to_string().replace(&root, "ROOT"))
    }
}

fn server(url: &str, token: &str) -> Result<(String, Option<String>), String> {
    Ok((url.to_owned(), Some(token.to_owned())))
}

#[test]
fn a_running_server_is_found_from_any_folder_with_its_token() {
    let world = world();
    let _running = world.server("elsewhere", "http://127.0.0.1:8080/");
    assert_eq!(world.found(), server("http://127.0.0.1:8080", "token-of-elsewhere"));
}

#[test]
fn the_server_of_the_current_folder_goes_before_the_latest_one() {
    let world = world();
    let _here = world.server("cwd/tenure-data", "http://127.0.0.1:1");
    let _later = world.server("elsewhere", "http://127.0.0.1:2");
    assert_eq!(world.found(), server("http://127.0.0.1:1", "token-of-cwd/tenure-data"));
}

#[test]
fn nothing_is_found_after_the_server_has_ended() {
    let world = world();
    drop(world.server("elsewhere", "http://127.0.0.1:8080"));
    expect_test::expect![[r#"
        Err(
            "no Tenure server found: ROOT/cwd/tenure-data/server.json is not there, ROOT/run/tenure/server.json is not there; start one with \"tenure up\" or name one with --server",
        )
    "#]]
    .assert_debug_eq(&world.found());
}

#[test]
fn what_a_killed_server_left_behind_is_passed_over() {
    let world = world();
    let file = world.places.latest().unwrap();
    write_whole(
        &file,
        &Pointer { url: "http://127.0.0.1:1".into(), pid: gone(), token_file: "/none".into() },
    )
    .unwrap();
    let said = world.found().unwrap_err();
    assert!(said.contains("which has ended"), "{said}");
    let _running = world.server("cwd/tenure-data", "http://127.0.0.1:2");
    assert_eq!(world.found().unwrap().0, "http://127.0.0.1:2");
}

#[test]
fn a_server_that_ends_leaves_the_pointers_of_the_others_alone() {
    let world = world();
    let first = world.server("first", "http://127.0.0.1:1");
    let second = world.server("second", "http://127.0.0.1:2");
    drop(first);
    assert_eq!(world.found(), server("http://127.0.0.1:2", "token-of-second"));
    assert!(world.places.latest().unwrap().exists(), "it is the second server's by now");
    let _third = world.server("third", "http://127.0.0.1:3");
    let again = world.server("third", "http://127.0.0.1:4");
    drop(again);
    drop(second);
    assert_eq!(world.found(), server("http://127.0.0.1:3", "token-of-third"), "the only one left");
}

#[test]
fn a_named_address_gets_the_token_of_that_server_and_of_no_other() {
    let world = world();
    let _first = world.server("first", "http://127.0.0.1:1");
    let _second = world.server("second", "http://127.0.0.1:2");
    let token = |url: &str| at_in(&world.places, url).token;
    assert_eq!(token("http://127.0.0.1:1/").as_deref(), Some("token-of-first"));
    assert_eq!(token("http://127.0.0.1:2").as_deref(), Some("token-of-second"));
    assert_eq!(token("http://example.org"), None);
    assert_eq!(token("http://127.0.0.1_1"), None, "a look-alike of a pointer's file name gets nothing");
}

#[test]
fn an_unreadable_token_is_explained() {
    let world = world();
    let _running = world.server("elsewhere", "http://127.0.0.1:1");
    std::fs::remove_file(world.root.path().join("elsewhere").join(TOKEN_FILE)).unwrap();
    let endpoint = find_in(&world.places).unwrap();
    assert_eq!(endpoint.token, None);
    assert!(endpoint.token_origin.contains("cannot be read"), "{}", endpoint.token_origin);
}

/// The id of a process that has ended and been waited for.
fn gone() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    pid
}

//! Goal: a reader that follows the cursor sees every byte once, in order, whatever was stored twice.

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;

use super::*;

fn attempt(number: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(number))
}

fn example_prefix() -> Path {
    prefix(&"default".into(), &"etl".into(), &"manual__2026-01-01T00:00:00Z".into(), &"load".into(), -1, 1)
}

async fn store_of(parts: &[(u128, u64, &'static str)]) -> InMemory {
    let store = InMemory::new();
    for (number, start, text) in parts {
        let part = Part { attempt: attempt(*number), start: *start, end: start + text.len() as u64 };
        store.put(&part.path(&example_prefix()), text.as_bytes().into()).await.unwrap();
    }
    store
}

#[tokio::test]
async fn parts_are_read_in_order_and_attempts_follow_one_another() {
    let store = store_of(&[(2, 0, "c"), (1, 1, "b"), (1, 0, "a")]).await;
    let chunk = read(&store, &example_prefix(), LogCursor::Start).await.unwrap();
    assert_eq!((chunk.text.as_str(), chunk.more), ("abc", false));
    let again = read(&store, &example_prefix(), chunk.next).await.unwrap();
    assert_eq!((again.text.as_str(), again.next), ("", chunk.next));
}

#[tokio::test]
async fn a_bounded_read_says_that_there_is_more_and_goes_on_where_it_was() {
    let store = store_of(&[(1, 0, "aaa\n"), (1, 4, "bbb\n"), (1, 8, "ccc\n"), (3, 0, "ddd\n")]).await;
    let (mut cursor, mut seen, mut calls) = (LogCursor::Start, String::new(), 0);
    loop {
        let chunk = read_up_to(&store, &example_prefix(), cursor, 5).await.unwrap();
        seen.push_str(&chunk.text);
        // Clients hold the cursor as text.
        cursor = chunk.next.to_string().parse().unwrap();
        calls += 1;
        if !chunk.more {
            break;
        }
    }
    assert_eq!((seen.as_str(), calls), ("aaa\nbbb\nccc\nddd\n", 2));
}

#[tokio::test]
async fn a_part_that_was_stored_twice_with_different_ends_is_read_once() {
    let store = store_of(&[(1, 0, "one\n"), (1, 0, "one\ntwo\n"), (1, 8, "three\n")]).await;
    let chunk = read(&store, &example_prefix(), LogCursor::Start).await.unwrap();
    assert_eq!(chunk.text, "one\ntwo\nthree\n");
}

#[tokio::test]
async fn the_largest_end_is_where_an_agent_goes_on() {
    let store = store_of(&[(1, 0, "one\n"), (1, 4, "two\n"), (2, 0, "of another attempt\n")]).await;
    assert_eq!(stored_until(&store, &example_prefix(), attempt(1)).await.unwrap(), 8);
    assert_eq!(stored_until(&store, &example_prefix(), attempt(9)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_try_without_output_is_empty_on_disk_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let chunk = read(&store, &example_prefix(), LogCursor::Start).await.unwrap();
    assert_eq!(chunk, LogChunk { text: String::new(), next: LogCursor::Start, more: false });
}

#[tokio::test]
async fn names_that_no_file_system_likes_are_stored_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let wild = |run: &str| prefix(&"default".into(), &"..".into(), &run.into(), &"a/b c%".into(), -1, 1);
    let (long, other) = (wild(&"é/".repeat(200)), wild(&format!("{}x", "é/".repeat(200))));
    assert_ne!(long, other);
    let part = Part { attempt: attempt(1), start: 0, end: 3 };
    store.put(&part.path(&long), "hi\n".into()).await.unwrap();
    assert_eq!(read(&store, &long, LogCursor::Start).await.unwrap().text, "hi\n");
    assert_eq!(read(&store, &other, LogCursor::Start).await.unwrap().text, "");
}

#[test]
fn a_cursor_that_nobody_gave_out_is_refused() {
    for text in
        ["", "12", "x.3", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001.-4"]
    {
        assert!(text.parse::<LogCursor>().is_err(), "{text:?} was accepted");
    }
}

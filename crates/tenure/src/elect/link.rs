//! What the wrapper and the keeper say to each other, as lines of JSON over two pipes.
//!
//! The keeper opens its ends through `/proc/WRAPPER/fd/N`. So nothing has to be inherited: all three standard
//! streams stay the command's own, and no descriptor of ours leaks into it. The wrapper's end of the orders is
//! the only one there is, hence its death, however it comes about, is an end of file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tenure_clock::BootTime;

/// From the wrapper to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The command may run until then, in nanoseconds since boot. The first one starts it.
    Until(u64),
    /// Pass this signal on to the command's process group.
    Signal(i32),
    /// The wrapper goes on after a stop: so shall the command, with the terminal if it is ours to give.
    Resume,
    Kill,
}

/// From the keeper to the wrapper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The command runs; the number is that of its process and of its group.
    Started(i32),
    /// The terminal has stopped the command (Ctrl-Z).
    Stopped,
    /// Nothing of the command is left. The last report.
    Ended { end: End, cut: Option<Cut> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Code(i32),
    Signal(i32),
}

impl End {
    /// As shells count it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code as u8,
            Self::Signal(number) => 128u8.wrapping_add(number as u8),
        }
    }
}

/// Why the command did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The deadline has passed and no later one has come.
    Deadline,
    /// The wrapper has said so.
    Ordered,
    WrapperDied,
    /// The deadline came near, the command was asked to end, and did.
    Warned,
}

pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("these messages can be written");
    line.push(b'\n');
    line
}

pub fn nanos(at: BootTime) -> u64 {
    at.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos() as u64
}

/// The keeper's end of the orders.
#[derive(Debug)]
pub struct Orders {
    pipe: File,
    unread: Vec<u8>,
    /// No more will come: the wrapper is gone, or talks nonsense.
    pub closed: bool,
}

impl Orders {
    pub fn open(wrapper: i32, fd: i32) -> io::Result<Self> {
        let pipe = open(wrapper, fd, OpenOptions::new().read(true))?;
        Ok(Self { pipe, unread: vec![], closed: false })
    }

    /// What has come since the last look; never waits.
    pub fn take(&mut self) -> Vec<Order> {
        let mut bytes = [0; 4096];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => {
                    self.unread.extend_from_slice(&bytes[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            return self.whole_lines();
        }
    }

    fn whole_lines(&mut self) -> Vec<Order> {
        let end = self.unread.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut orders = vec![];
        for line in self.unread.drain(..end).as_slice().split(|byte| *byte == b'\n').filter(|l| !l.is_empty())
        {
            match serde_json::from_slice(line) {
                Ok(order) => orders.push(order),
                // Whatever it was: a command whose orders cannot be read has nobody above it.
                Err(_) => self.closed = true,
            }
        }
        orders
    }
}

impl std::os::fd::AsFd for Orders {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// The keeper's end of the reports.
#[derive(Debug)]
pub struct Reports(File);

impl Reports {
    pub fn open(wrapper: i32, fd: i32) -> io::Result<Self> {
        open(wrapper, fd, OpenOptions::new().write(true)).map(Self)
    }

    pub fn send(&mut self, report: &Report) {
        let _ = self.0.write_all(&line(report)); // a wrapper that is gone needs no report
    }
}

/// Non-blocking, so that neither side can hold up the other.
fn open(wrapper: i32, fd: i32, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(format!("/proc/{wrapper}/fd/{fd}"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn orders_arrive_in_their_order_whatever_the_pieces() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut orders = Orders::open(std::process::id() as i32, reader.as_raw_fd()).unwrap();
        assert_eq!((orders.take(), orders.closed), (vec![], false));
        let text = [line(&Order::Until(7)), line(&Order::Signal(15)), line(&Order::Kill)].concat();
        writer.write_all(&text[..text.len() - 3]).unwrap();
        assert_eq!(orders.take(), [Order::Until(7), Order::Signal(15)]);
        writer.write_all(&text[text.len() - 3..]).unwrap();
        assert_eq!((orders.take(), orders.closed), (vec![Order::Kill], false));
        drop(writer);
        assert_eq!((orders.take(), orders.closed), (vec![], true));
    }

    #[test]
    fn an_order_that_cannot_be_read_counts_as_a_lost_wrapper() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut orders = Orders::open(std::process::id() as i32, reader.as_raw_fd()).unwrap();
        writer.write_all(b"nonsense\n").unwrap();
        assert_eq!((orders.take(), orders.closed), (vec![], true));
    }

    #[test]
    fn exit_codes_are_counted_as_shells_do() {
        assert_eq!(End::Code(0).exit_code(), 0);
        assert_eq!(End::Code(42).exit_code(), 42);
        assert_eq!(End::Signal(15).exit_code(), 143);
        assert_eq!(End::Signal(9).exit_code(), 137);
    }
}

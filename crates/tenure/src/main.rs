mod cli;
mod discovery;

fn main() {}

//! `forebay top`: the live view in a terminal, once a second. Without a terminal it prints plain
//! lines or JSON. It restores the terminal, also after Ctrl-C or an error.
//!
//! Invariant: T1 names of files cannot control the terminal: control characters are shown as `?`.

mod frame;

use crate::control::client::Client;
use crate::control::proto::Request;
use crate::control::which::Which;
use crate::failure::{Failure, Outcome};
use crate::{output, signals};
use clap::Args;
use frame::{History, Look};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// `forebay top`
#[derive(Args, Debug)]
pub struct TopArgs {
    /// A mount: its process
    #[arg(value_name = "DIR", conflicts_with_all = ["control", "pid"])]
    pub dir: Option<PathBuf>,
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// Look again every SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval: u32,
    /// Look for a second, print what was seen, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn top(args: &TopArgs) -> Outcome {
    let mut client = match &args.dir {
        Some(dir) => Client::of_mount(dir)?,
        None => Client::find(&args.which)?,
    };
    let pause = Duration::from_secs(args.interval.into());
    let (stop, stopped) = channel();
    signals::watch(stop, (), |_| {})?;
    if args.once {
        // Rates refer to the time since the sample before: this request makes the first sample.
        client.ask(&Request::Live)?;
        wait(&stopped, Duration::from_secs(1));
        return show(&mut client, args, &mut History::default());
    }
    let mut history = History::default();
    if args.json || !std::io::stdout().is_terminal() {
        loop {
            show(&mut client, args, &mut history)?;
            if wait(&stopped, pause) {
                return Ok(());
            }
        }
    }
    let screen = Screen::open()?;
    loop {
        let view = client.ask(&Request::Live)?;
        history.add(&view);
        let size = terminal_size::terminal_size();
        let (width, height) = size.map_or((80, 24), |(w, h)| (w.0.into(), h.0.into()));
        screen.draw(&frame::lines(&view, &history, &Look { width, height, colour: true }))?;
        if wait(&stopped, pause) {
            return Ok(());
        }
    }
}

/// Waits; returns whether a stop was requested meanwhile.
fn wait(stopped: &Receiver<()>, pause: Duration) -> bool {
    stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout)
}

fn show(client: &mut Client, args: &TopArgs, history: &mut History) -> Outcome {
    let view = client.ask(&Request::Live)?;
    if args.json {
        output::line(view.to_string());
        return Ok(());
    }
    history.add(&view);
    let look = Look { width: 120, height: usize::MAX, colour: false };
    output::line(frame::lines(&view, history, &look).join("\n"));
    Ok(())
}

/// The terminal's alternate screen, without a cursor.
struct Screen;

impl Screen {
    fn open() -> Outcome<Self> {
        write("\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }

    fn draw(&self, lines: &[String]) -> Outcome {
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { "\r\n" });
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        write(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _left = write("\x1b[?25h\x1b[?1049l");
    }
}

fn write(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::io("terminal", &e))
}

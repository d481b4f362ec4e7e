//! A volume that another process has open, used through that process: calls of the file-system
//! contract as frames on the control socket, after a request `volume` on it.
//!
//! ```text
//!   client                               process that has the volume open
//!   {"op":"volume","dev":..,"ino":..} ->
//!                                     <- {"ok":true,...}      from here on frames:
//!   length u32 | call                 ->
//!                                     <- length u32 | answer or error
//! ```
//! `proto` has the frames, `client` is a file system that sends its calls, `server` carries them
//! out.
//!
//! R1 A frame is at most [`proto::FRAME_MAX`] bytes, a session has at most [`server::HANDLES_MAX`]
//!    open files, an answer no more than was asked for: the size of a client's requests bounds the
//!    memory that it can occupy here.
//! R2 A frame that makes no sense ends the session, with an error that says why; nothing of it is
//!    done.
//! R3 What a client had open is closed when its session ends, however it ends.
//! R4 Sessions end before the process makes everything durable for the last time: what was answered
//!    with success is on the volume when the process ends with status 0.

pub mod client;
pub mod fields;
pub mod proto;
pub mod server;
#[cfg(test)]
mod tests;

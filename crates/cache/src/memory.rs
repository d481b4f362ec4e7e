//! The memory that cached bytes live in: [`arena`] (the mapping), [`frames`] (who owns which frame).

pub mod arena;
pub mod frames;

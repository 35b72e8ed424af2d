//! Images written out of a table and a source of contents, in the forms that others take.

pub mod rootfs;

//! Plans: what is sent makes the wanted image out of the one that is had.

mod images;
mod order;
mod prepared;

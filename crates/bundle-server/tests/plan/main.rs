//! Tests of planning: a worker that applies the frames of a plan to the base image gets the wanted
//! image.

mod images;
mod order;
mod prepared;

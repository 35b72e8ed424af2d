//! Tests of planning: the frames of a plan make the wanted image from the base image.

mod images;
mod order;
mod prepared;

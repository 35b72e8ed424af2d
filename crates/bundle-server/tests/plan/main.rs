//! Tests of bundle planning: patches between two images, the order of the files in a bundle, and
//! that a worker that applies the frames of a plan to the base image gets the wanted image.

mod images;
mod order;
mod prepared;

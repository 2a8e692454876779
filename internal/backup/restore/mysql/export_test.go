package mysql

// Hold is what a session of a restore begins with.
var Hold = hold

package postgres

// HoldLock is what a session of a restore begins with.
var HoldLock = holdLock

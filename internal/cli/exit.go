package cli

import "errors"

// The exit codes of every verb.
const (
	ExitFine      = 0
	ExitFailed    = 1
	ExitUsage     = 2 // the command line or the configuration makes no sense
	ExitShortfall = 3 // all ran, and a check fell short: a gate, a verification
)

// exitError is an error that chooses its exit code; every other error that a
// verb returns is ExitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// Exit has a verb that returns err end with a code of its own.
func Exit(code int, err error) error { return &exitError{code, err} }

// UsageError marks an error as the user's to correct in what was asked. Verbs
// need it only within RunE: all that fails before, PreRunE included, counts as
// usage by itself.
func UsageError(err error) error { return Exit(ExitUsage, err) }

// Shortfall marks an error as the result of a check that ran and was not met,
// for scripts to tell from a check that could not run.
func Shortfall(err error) error { return Exit(ExitShortfall, err) }

// ExitCode returns the exit code of a verb whose RunE returned err.
func ExitCode(err error) int {
	var chosen *exitError
	switch {
	case err == nil:
		return ExitFine
	case errors.As(err, &chosen):
		return chosen.code
	}
	return ExitFailed
}

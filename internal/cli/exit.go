package cli

import "errors"

// The exit codes of every verb.
const (
	ExitFine      = 0
	ExitFailed    = 1
	ExitUsage     = 2 // the command line or the configuration is invalid
	ExitShortfall = 3 // everything ran, and a check fell short: a gate, a verification
)

// exitError is an error with an exit code; any other error that a verb returns means
// ExitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// Exit returns err with an exit code.
func Exit(code int, err error) error { return &exitError{code, err} }

// UsageError marks an error in what the user has asked for. Verbs need it only within RunE:
// errors before that, in PreRunE for example, are usage errors anyway.
func UsageError(err error) error { return Exit(ExitUsage, err) }

// Shortfall marks an error as the result of a check that ran and was not met, so that scripts
// can distinguish it from a check that could not run.
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

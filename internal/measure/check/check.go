// Package check represents the results of checks: of a machine (package doctor), or of the
// servers in a configuration.
package check

import (
	"fmt"
	"io"
)

// State is the result of a check.
type State string

// The states of a check. Limited means that it works with the limits in Detail.
const (
	Yes     State = "yes"
	Limited State = "limited"
	No      State = "no"
)

// Check is one thing that works or not.
type Check struct {
	Name  string `json:"name"`  // what was checked
	State State  `json:"state"` // yes, limited or no
	// Detail is what was found, with figures if there are any.
	Detail string `json:"detail"`
	// For says what needs this.
	For string `json:"for"`
	// Hint says what to do, if anything can be done.
	Hint string `json:"hint,omitempty"`
}

// Count returns the number of checks with a state.
func Count(checks []Check, state State) (n int) {
	for _, c := range checks {
		if c.State == state {
			n++
		}
	}
	return n
}

// Print prints one line for each check, followed by its hint.
func Print(w io.Writer, checks []Check) error {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	for _, c := range checks {
		if _, err := fmt.Fprintf(w, "%-7s  %-*s  %s\n", c.State, width, c.Name, c.Detail); err != nil {
			return fmt.Errorf("print checks: %w", err)
		}
		if c.State == Yes {
			continue
		}
		line := "for " + c.For
		if c.Hint != "" {
			line += "; " + c.Hint
		}
		if _, err := fmt.Fprintf(w, "%-7s  %-*s  %s\n", "", width, "", line); err != nil {
			return fmt.Errorf("print checks: %w", err)
		}
	}
	_, err := fmt.Fprintf(w, "\n%d of %d work, %d with limits, %d do not.\n", Count(checks, Yes), len(checks), Count(checks, Limited), Count(checks, No))
	return err
}

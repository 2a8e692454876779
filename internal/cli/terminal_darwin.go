package cli

import "golang.org/x/sys/unix"

// getTermios asks for the settings of a terminal.
const getTermios = unix.TIOCGETA

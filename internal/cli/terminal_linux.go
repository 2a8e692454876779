package cli

import "golang.org/x/sys/unix"

// getTermios is the ioctl that reads the settings of a terminal.
const getTermios = unix.TCGETS

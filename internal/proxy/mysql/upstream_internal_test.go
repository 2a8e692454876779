package mysql

import "testing"

// Servers have two forms for what is on or off, and MariaDB four for read_only.
func TestSwitches(t *testing.T) {
	t.Parallel()
	for value, off := range map[string]bool{"0": true, "OFF": true, "off": true, "1": false, "ON": false, "NO_LOCK": false, "NO_LOCK_NO_ADMIN": false, "": false} {
		if isOff(value) != off {
			t.Errorf("%q: off is %v, want %v", value, !off, off)
		}
	}
}

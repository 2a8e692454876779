package binlog

import (
	"errors"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Reasons why a server's log cannot be followed. An UnavailableError wraps one of them.
var (
	// ErrLogOff: the server has no binary log.
	ErrLogOff = errors.New("the server keeps no binary log")
	// ErrPrivilege: the account may not read it.
	ErrPrivilege = errors.New("the account may not read the binary log")
	// ErrFormat: changes are logged as statements, or may be.
	ErrFormat = errors.New("the binary log does not hold all changes as rows")
	// ErrRowImage: rows are logged without some of their columns.
	ErrRowImage = errors.New("the binary log does not hold whole rows")
	// ErrPurged: what follows the position, or the GTIDs, is not in the log, or not any more. A
	// replica there has missed changes and has to start over from a copy of the data.
	ErrPurged = errors.New("the position is not in the server's binary log any more")
	// ErrPosition: the log has no event there. It is another server's position, or the server
	// has lost the end of its log.
	ErrPosition = errors.New("the server's binary log has no such position")
	// ErrReplaced: another replica with the same server id follows the log.
	ErrReplaced = errors.New("another replica has the same server id")
	// ErrNoGTIDs: the server has GTIDs switched off.
	ErrNoGTIDs = errors.New("the server has GTIDs switched off")
)

// UnavailableError says why a log cannot be followed, and what to do.
type UnavailableError struct {
	Err    error  // one of the errors above
	Detail string // the server's message or setting
	Hint   string // what the operator can do; may be empty
}

// Error returns the reason, the detail and the hint.
func (e *UnavailableError) Error() string {
	s := e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the reason.
func (e *UnavailableError) Unwrap() error { return e.Err }

// Servers' error numbers for problems with their logs.
const (
	errNoBinaryLogging = 1381 // ER_NO_BINARY_LOGGING
	errReadingLog      = 1236 // ER_MASTER_FATAL_ERROR_READING_BINLOG
	errDenied          = 1227 // ER_SPECIFIC_ACCESS_DENIED_ERROR
	errSameReplica     = 4052 // MariaDB: ER_SLAVE_SAME_ID
)

const (
	hintLogOff    = "start the server with --log-bin"
	hintPrivilege = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the account; MariaDB calls the latter BINLOG MONITOR"
	hintPurged    = "start over from a copy of the data, and keep logs longer: binlog_expire_logs_seconds"
)

// unavailable returns an UnavailableError if the server's error is one that users can act on;
// otherwise err.
func unavailable(err error) error {
	var e *mywire.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case errNoBinaryLogging:
		return &UnavailableError{ErrLogOff, e.Error(), hintLogOff}
	case errDenied, mywire.ErrAccessDenied, mywire.ErrDBAccessDenied:
		return &UnavailableError{ErrPrivilege, e.Error(), hintPrivilege}
	case errReadingLog:
		return fatal(e)
	case errSameReplica:
		return &UnavailableError{ErrReplaced, e.Error(), ""}
	}
	return err
}

// fatal distinguishes the errors for which servers use one number.
func fatal(e *mywire.Error) error {
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(strings.ToLower(e.Message), p) {
				return true
			}
		}
		return false
	}
	switch {
	case says("binary log is not open"):
		return &UnavailableError{ErrLogOff, e.Error(), hintLogOff}
	case says("gtid_mode", "gtid mode"):
		return &UnavailableError{ErrNoGTIDs, e.Error(), "start at a position instead"}
	case says("same server_uuid", "same server_id"):
		return &UnavailableError{ErrReplaced, e.Error(), ""}
	case says("> file size", "impossible position", "exceeds the"):
		return &UnavailableError{ErrPosition, e.Error(), ""}
	case says("could not find", "purged", "not in the master's binlog", "not found in binlog", "gtid state", "is missing"):
		return &UnavailableError{ErrPurged, e.Error(), hintPurged}
	}
	return e
}

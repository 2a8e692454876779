package binlog

import (
	"errors"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Why a server's log cannot be followed. An UnavailableError wraps one of them.
var (
	// ErrLogOff: the server keeps no binary log.
	ErrLogOff = errors.New("the server keeps no binary log")
	// ErrPrivilege: the account may not read it.
	ErrPrivilege = errors.New("the account may not read the binary log")
	// ErrFormat: changes are logged as statements, or may be.
	ErrFormat = errors.New("the binary log does not hold all changes as rows")
	// ErrRowImage: rows are logged without some of their columns.
	ErrRowImage = errors.New("the binary log does not hold whole rows")
	// ErrPurged: what comes after the position, or the GTIDs, is not in the log,
	// or not any more. Anyone who is at it has missed something and has to begin
	// anew from a copy of the data.
	ErrPurged = errors.New("the position is not in the server's binary log any more")
	// ErrPosition: the log has no event there. It is another server's position,
	// or the server has lost the end of its log.
	ErrPosition = errors.New("the server's binary log has no such position")
	// ErrReplaced: somebody else follows the log with the same server id.
	ErrReplaced = errors.New("another replica has the same server id")
	// ErrNoGTIDs: the server has GTIDs switched off.
	ErrNoGTIDs = errors.New("the server has GTIDs switched off")
)

// UnavailableError says why a log cannot be followed, and what helps.
type UnavailableError struct {
	Err    error  // one of the errors above
	Detail string // what the server says, or how it is set
	Hint   string // what the operator can do; empty if nothing
}

// Error says all that is known.
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

// Error numbers of servers about their logs.
const (
	errNoBinaryLogging = 1381 // ER_NO_BINARY_LOGGING
	errReadingLog      = 1236 // ER_MASTER_FATAL_ERROR_READING_BINLOG
	errDenied          = 1227 // ER_SPECIFIC_ACCESS_DENIED_ERROR
	errSameReplica     = 4052 // MariaDB: ER_SLAVE_SAME_ID
)

const (
	hintLogOff    = "start the server with --log-bin"
	hintPrivilege = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the account; MariaDB calls the latter BINLOG MONITOR"
	hintPurged    = "begin anew from a copy of the data, and keep logs longer: binlog_expire_logs_seconds"
)

// unavailable names the reason where the server's error is one of those that
// users act on; else it returns err as it is.
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

// fatal tells apart what servers have one number for.
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
		return &UnavailableError{ErrNoGTIDs, e.Error(), "follow it by position"}
	case says("same server_uuid", "same server_id"):
		return &UnavailableError{ErrReplaced, e.Error(), ""}
	case says("> file size", "impossible position", "exceeds the"):
		return &UnavailableError{ErrPosition, e.Error(), ""}
	case says("could not find", "purged", "not in the master's binlog", "not found in binlog", "gtid state", "is missing"):
		return &UnavailableError{ErrPurged, e.Error(), hintPurged}
	}
	return e
}

package profile

import "testing"

func TestPasswordsStayOutOfMessages(t *testing.T) {
	for _, tc := range []struct{ dsn, want string }{
		{"postgres://app:secret@db:5432/app", "postgres://app:***@db:5432/app"},
		{"postgres://app@db/app", "postgres://app@db/app"},
		{"host=db user=app password=secret", "host=db user=app password=***"},
		{"postgres//app:secret@db/app", "***@db/app"},
		{"postgres://app:sec/ret@db/app", "***@db/app"},
		{"app:secret@tcp(db:3306)/app", "***@tcp(db:3306)/app"},
		{"sleep://?latency=5ms", "sleep://?latency=5ms"},
	} {
		if got := redact(tc.dsn); got != tc.want {
			t.Errorf("redact(%q) = %q, want %q", tc.dsn, got, tc.want)
		}
	}
}

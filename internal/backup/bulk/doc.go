// Package bulk has what backups and restores of every engine share: the selection of tables
// (Filter), how much of the machine they may use (Profile), the order and concurrency of jobs
// (Run), and their progress (Progress). It opens no connections and knows no SQL; packages
// below it, such as bulk/postgres, each know one engine.
package bulk

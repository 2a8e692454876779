package kvcmd

import "github.com/spf13/cobra"

func newKVCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Replicated key-value store for Redis clients",
		Long: `A key-value store on 1, 3 or 5 replicas, each on its own disk. Strong
operations are linearizable; weak ones are causal within their session and answered
by the nearest replica. Redis clients work unmodified.

  weir kv serve              runs a replica
  weir kv get, put, del …    are clients
  weir kv export, import     write all keys to a file, and back
  weir kv status, member     show and change the cluster
  weir kv simulate           simulates clusters with faults, and checks them

Options of serve can be flags, WEIR_KV_ variables (--batch-delay as
WEIR_KV_BATCH_DELAY) or lines of a YAML file (batch_delay). A flag overrides the
variable, which overrides the file.`,
	}
	cmd.AddCommand(newKVServe(), newKVGet(), newKVPut(), newKVDel(), newKVIncr(), newKVRange(), newKVWatch(), newKVLease(), newKVExport(), newKVImport(),
		newKVStatus(), newKVMember(), newKVVerify(), newKVSimulateCommand())
	return cmd
}

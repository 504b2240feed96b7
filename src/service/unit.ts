/** The service of a machine. `purser install` and the Debian package make the same, but for the place of the executable. */
export const SERVICE = {
  unit: 'purser.service',
  /** The path at which `purser install` puts the executable. */
  executable: '/usr/local/bin/purser',
  user: 'purser',
  data: '/var/lib/purser',
  settings: '/etc/purser/purser.yaml',
  /** Variables that the settings name, as keys of model servers: root's alone, since any user may ask systemd for a unit's own. */
  variables: '/etc/purser/purser.env',
  /** The directory of what `purser upgrade` keeps: root's own, as root runs it and puts it in the place of the executable. */
  upgrades: '/usr/local/lib/purser',
} as const;

/** Returns the text of the unit that runs this executable under systemd. */
export const unitText = (executable: string): string => `# Changes belong into a drop-in: systemctl edit purser.
[Unit]
Description=Purser: bounded spending wallets for software agents
Wants=network-online.target
After=network-online.target time-sync.target
# It never gives up: a disk that is full or read-only today is well again some day.
StartLimitIntervalSec=0

[Service]
Type=exec
User=${SERVICE.user}
Group=${SERVICE.user}
Environment=PURSER_DATA=${SERVICE.data}
Environment=PURSER_CONFIG=${SERVICE.settings}
EnvironmentFile=-${SERVICE.variables}
ExecStart=${executable} serve
ExecReload=${executable} reload
StateDirectory=purser
StateDirectoryMode=0700
UMask=0077
LimitNOFILE=65536
# No secret in a core file; where memory runs out, what is leased (500) is ended first.
LimitCORE=0
OOMScoreAdjust=-500

# After a failed fsync Purser stops at once, and the next start finds out what is on the disk. On a read-only disk a start
# says so and ends (5) until it is writable. Wrong usage (2) and another owner of the data directory (4) do not get better
# by themselves.
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 4
# Requests in flight have drain_seconds to be answered, by default the longest timeout_seconds of an upstream (300 unless
# configured), and a moment more. What is killed earlier costs its wallet what is held for it: with a longer time-out,
# raise this too. The children, which carry out what a lease needs, are not told to stop before that.
KillMode=mixed
TimeoutStopSec=330

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectProc=invisible
ProcSubset=pid
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
# A thread that reads large bodies lets the others go first.
SystemCallFilter=setpriority
SystemCallErrorNumber=EPERM
# Not MemoryDenyWriteExecute: the JavaScript engine compiles at run time.

# Backends need a little more, in a drop-in:
#   container (Docker):  SupplementaryGroups=docker
#   slurm:               User=root, and CapabilityBoundingSet=, SystemCallFilter=, ProtectHome=, PrivateTmp= as the site's
#                        sbatch needs them; jobs are given to job_user by root alone

[Install]
WantedBy=multi-user.target
`;

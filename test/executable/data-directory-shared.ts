export const STRANGER = 65534;
